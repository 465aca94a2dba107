//! Where a graph runs: `cpu:0`, `xla:cuda:0`, `reference` for debugging, or `null` for shapes alone.

use std::fmt;
use std::str::FromStr;
use tensorpack_tensor::{Error, ErrorKind};

/// A device, as users name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A team of threads of this process, by number.
    Cpu(usize),
    /// A device that XLA compiles for, through a plugin. See `docs/xla.md`.
    Xla {
        /// Whose plugin.
        platform: Platform,
        /// Which of its devices.
        index: usize,
    },
    /// A plain interpreter of the graph that computes every operation from its definition in f64: slow, and what the
    /// other devices are tested against. For telling whether a result is a device's fault or the model's own.
    Reference,
    /// Computes nothing: every result is zeros of the right shape. For testing what surrounds the computation.
    Null,
}

/// How many devices `xla:cpu` has: shares of one processor, so as many as tests may want.
pub const XLA_CPU_DEVICES: usize = 8;

/// What XLA compiles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// This machine's processor, for tests: the embedded engine is faster there.
    Cpu,
    /// NVIDIA's GPUs.
    Cuda,
    /// Google's TPUs.
    Tpu,
}

impl Platform {
    /// The name, as in `xla:cuda:0`.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Cuda => "cuda",
            Platform::Tpu => "tpu",
        }
    }

    fn named(name: &str) -> Option<Platform> {
        [Platform::Cpu, Platform::Cuda, Platform::Tpu].into_iter().find(|p| p.name() == name)
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device, Error> {
        let number = |n: &str| n.parse().ok();
        let xla = |platform: &str, index: Option<usize>| {
            Some(Device::Xla { platform: Platform::named(platform)?, index: index? })
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            ["cpu"] => Some(Device::Cpu(0)),
            ["cpu", n] => number(n).map(Device::Cpu),
            ["reference"] => Some(Device::Reference),
            ["null"] => Some(Device::Null),
            ["xla", platform] => xla(platform, Some(0)),
            ["xla", platform, n] => xla(platform, number(n)),
            _ => None,
        }
        .ok_or_else(|| {
            let all = "cpu:N, xla:cpu:N, xla:cuda:N, xla:tpu:N, reference and null";
            let why = format!("{text:?} is no device; there are {all}");
            Error::new(ErrorKind::Unsupported, why)
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu(n) => write!(f, "cpu:{n}"),
            Device::Xla { platform, index } => write!(f, "xla:{}:{index}", platform.name()),
            Device::Reference => f.write_str("reference"),
            Device::Null => f.write_str("null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for name in ["cpu:0", "cpu:3", "xla:cpu:1", "xla:cuda:0", "xla:tpu:7", "reference", "null"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        assert_eq!("xla:cuda".parse::<Device>().unwrap(), Device::Xla { platform: Platform::Cuda, index: 0 });
        for name in ["gpu:0", "xla", "xla:rocm:0", "xla:cuda:x", "cpu:0:1", ""] {
            assert!(name.parse::<Device>().unwrap_err().message().contains("is no device"), "{name}");
        }
    }
}
