//! Devices as users name them: `cpu:0`, `xla:cuda:0`, `reference`, `null`.

use super::engine::{Engine, engines};
use super::xla::Platform;
use std::fmt;
use std::str::FromStr;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A device, as users name it. Its [engine](Device::engine) knows everything else about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A thread team of this process, by index.
    Cpu(usize),
    /// A device that XLA compiles for, through a plugin. See `docs/xla.md`.
    Xla {
        /// The platform, which selects the plugin.
        platform: Platform,
        /// The index of the device on the platform.
        index: usize,
    },
    /// A plain interpreter that computes every operation from its definition in f64. It is slow;
    /// the other devices are tested against it. Use it to find out whether a result is wrong
    /// because of the device or because of the model.
    Reference,
    /// Computes nothing: every result is zeros of the right shape. For testing everything around
    /// the computation.
    Null,
    /// A device of a [registered](super::register_engine) engine.
    Other {
        /// The name of the engine.
        engine: &'static str,
        /// The index of the device.
        index: usize,
    },
}

impl Device {
    fn engine_name(self) -> &'static str {
        match self {
            Device::Cpu(_) => "cpu",
            Device::Xla { .. } => "xla",
            Device::Reference => "reference",
            Device::Null => "null",
            Device::Other { engine, .. } => engine,
        }
    }

    /// Returns the engine of this device, or an error if it is not registered.
    pub fn engine(self) -> Result<&'static dyn Engine> {
        find_engine(self.engine_name()).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{self} has no engine"))
                .note("register its engine with `register_engine` first")
        })
    }

    /// Returns whether both devices belong to the same engine.
    pub fn same_engine(self, other: Device) -> bool {
        self.engine_name() == other.engine_name()
    }
}

impl Default for Device {
    /// `cpu:0`.
    fn default() -> Device {
        Device::Cpu(0)
    }
}

fn find_engine(name: &str) -> Option<&'static dyn Engine> {
    engines().into_iter().find(|engine| engine.name() == name)
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let parts: Vec<&str> = text.split(':').collect();
        find_engine(parts[0]).and_then(|engine| engine.parse_device(&parts[1..])).ok_or_else(|| {
            let all: Vec<String> = engines().iter().map(|engine| engine.device_names()).collect();
            let why = format!("{text:?} is not a device; devices are {}", all.join(", "));
            Error::new(ErrorKind::Unsupported, why)
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine_name())?;
        match self {
            Device::Cpu(index) | Device::Other { index, .. } => write!(f, ":{index}"),
            Device::Xla { platform, index } => write!(f, ":{}:{index}", platform.name()),
            Device::Reference | Device::Null => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in
            ["cpu:0", "cpu:3", "xla:cpu:1", "xla:cuda:0", "xla:rocm:1", "xla:tpu:7", "reference", "null"]
        {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::default());
        assert_eq!("xla:cuda".parse::<Device>().unwrap(), Device::Xla { platform: Platform::Cuda, index: 0 });
        for name in ["gpu:0", "xla", "xla:metal:0", "xla:cuda:x", "cpu:0:1", "null:0", "reference:1", ""] {
            let e = name.parse::<Device>().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{name}");
            assert!(e.message().contains("xla:cuda:N"), "{e}");
        }
    }
}
