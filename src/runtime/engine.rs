//! The registry of engines: which devices exist, and how to create an executor on one of them.

use super::executor::Executor;
use super::{Device, SessionOptions, Turns, cpu, null, reference, xla};
use crate::graph::Frozen;
use std::sync::{PoisonError, RwLock};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A kind of device: the names of its devices, what they support, and how to create an
/// [`Executor`] on them.
///
/// Implement it in one file and add the engine to the list in this one, or register it at run time
/// with [`register_engine`]. The registry is consulted when a device name is parsed and when a
/// session or trainer is created, never during a step. `docs/extend/device.md` has an example.
pub trait Engine: Send + Sync {
    /// The first part of its device names: `xla` in `xla:cuda:0`.
    fn name(&self) -> &'static str;

    /// The patterns of its device names, for error messages, such as `cpu:N`.
    fn device_names(&self) -> String {
        format!("{}:N", self.name())
    }

    /// One line for `tensorpack doctor`.
    fn description(&self) -> String;

    /// Parses the parts of a device name that follow the engine's name: `["cuda", "0"]` for
    /// `xla:cuda:0`. By default these are nothing, or an index.
    fn parse_device(&self, parts: &[&str]) -> Option<Device> {
        let index = parse_index(parts)?;
        Some(Device::Other { engine: self.name(), index })
    }

    /// Whether its executors can be [forked](Executor::fork), which asynchronous training needs.
    /// Defaults to `false`.
    fn supports_forks(&self) -> bool {
        false
    }

    /// Whether its executors run all-reduces over several processes: see
    /// [`SessionOptions::process_group`]. Defaults to `false`.
    fn supports_process_groups(&self) -> bool {
        false
    }

    /// Whether its executors obey [`SessionOptions::stochastic_rounding`]. Defaults to `false`.
    fn rounds_stochastically(&self) -> bool {
        false
    }

    /// Checks that tower `i` can run on `devices[i]` for all `i`. The devices are at least one, all
    /// of this engine. By default any list is valid.
    fn check_towers(&self, devices: &[Device]) -> Result<()> {
        let _ = devices;
        Ok(())
    }

    /// Creates an executor of `graph` on `options.device`, without variables. `turns` tells when it
    /// may access variables that it shares with forks.
    fn create(&self, graph: &Frozen, options: &SessionOptions, turns: &Turns) -> Result<Box<dyn Executor>>;
}

/// The engines of this crate. A new one needs only its line here.
static BUILT_IN: [&dyn Engine; 4] =
    [&cpu::CpuEngine, &xla::XlaEngine, &reference::ReferenceEngine, &null::NullEngine];

/// The engines that the program registered.
static REGISTERED: RwLock<Vec<&'static dyn Engine>> = RwLock::new(Vec::new());

/// Adds an engine. From then on its device names can be parsed and used in sessions and trainers.
///
/// Returns an error if the name is taken, is empty, or contains a colon.
pub fn register_engine(engine: &'static dyn Engine) -> Result<()> {
    let name = engine.name();
    if name.is_empty() || name.contains(':') {
        return Err(Error::argument(format!("an engine cannot be named {name:?}"))
            .note("use a non-empty name without a colon"));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if BUILT_IN.iter().chain(registered.iter()).any(|e| e.name() == name) {
        return Err(Error::new(ErrorKind::Name, format!("an engine named {name:?} already exists")));
    }
    registered.push(engine);
    Ok(())
}

/// Returns all engines: those of this crate, then those that were registered.
pub fn engines() -> Vec<&'static dyn Engine> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    BUILT_IN.iter().chain(registered.iter()).copied().collect()
}

/// Parses an optional index, the last part of a device name. Defaults to 0.
pub(super) fn parse_index(parts: &[&str]) -> Option<usize> {
    match parts {
        [] => Some(0),
        [index] => index.parse().ok(),
        _ => None,
    }
}

/// The error of a tower whose device does not go with that of the first tower.
pub(crate) fn device_mismatch(tower: usize, device: Device, first: Device) -> Error {
    Error::argument(format!("tower {tower} cannot run on {device} because tower 0 runs on {first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every engine parses the devices that its patterns describe, and only its own.
    #[test]
    fn built_in_engines_parse_their_device_names() {
        let names: Vec<&str> = BUILT_IN.iter().map(|e| e.name()).collect();
        assert_eq!(names, ["cpu", "xla", "reference", "null"]);
        for engine in BUILT_IN {
            assert!(!engine.description().is_empty(), "{}", engine.name());
            for pattern in engine.device_names().split(", ") {
                let name = pattern.replace('N', "3");
                let device: Device = name.parse().unwrap();
                assert_eq!(device.to_string(), name);
                assert_eq!(device.engine().unwrap().name(), engine.name());
            }
        }
    }

    struct Named(&'static str);

    impl Engine for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> String {
            "has no executor".into()
        }

        fn create(&self, _: &Frozen, options: &SessionOptions, _: &Turns) -> Result<Box<dyn Executor>> {
            Err(Error::new(ErrorKind::Unsupported, format!("{} has no executor", options.device)))
        }
    }

    #[test]
    fn names_of_engines_are_unique() {
        for name in ["cpu", "xla", "reference", "null"] {
            let taken = register_engine(Box::leak(Box::new(Named(name)))).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::Name, "{taken}");
        }
        for name in ["", "a:b"] {
            let e = register_engine(Box::leak(Box::new(Named(name)))).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        }
        register_engine(&Named("toy")).unwrap();
        assert_eq!(register_engine(&Named("toy")).unwrap_err().kind(), ErrorKind::Name);
        let device: Device = "toy:2".parse().unwrap();
        assert_eq!(device, Device::Other { engine: "toy", index: 2 });
        assert_eq!(device.to_string(), "toy:2");
        assert!(engines().iter().any(|e| e.name() == "toy"));
    }

    #[test]
    fn a_device_of_an_unregistered_engine_is_an_error() {
        let device = Device::Other { engine: "missing", index: 0 };
        let e = device.engine().err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains("missing"), "{e}");
    }
}
