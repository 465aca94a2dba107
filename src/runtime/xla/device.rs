//! The XLA engine's entry in the registry: devices of PJRT plugins, `xla:cuda:N`.

use super::executor::XlaExecutor;
use super::platform::Platform;
use super::target::XlaOptions;
use crate::graph::Frozen;
use crate::runtime::engine::{Engine, device_mismatch, parse_index};
use crate::runtime::executor::Executor;
use crate::runtime::{Device, SessionOptions, Turns};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The XLA engine.
pub(in crate::runtime) struct XlaEngine;

/// Returns the platform and the index of an XLA device.
fn parts(device: Device) -> Result<(Platform, usize)> {
    match device {
        Device::Xla { platform, index } => Ok((platform, index)),
        _ => Err(Error::new(ErrorKind::Unsupported, format!("{device} is not an XLA device"))),
    }
}

impl Engine for XlaEngine {
    fn name(&self) -> &'static str {
        "xla"
    }

    fn device_names(&self) -> String {
        let names: Vec<String> = Platform::ALL.iter().map(|p| format!("xla:{}:N", p.name())).collect();
        names.join(", ")
    }

    fn description(&self) -> String {
        "devices of PJRT plugins".into()
    }

    fn parse_device(&self, parts: &[&str]) -> Option<Device> {
        let (platform, index) = parts.split_first()?;
        Some(Device::Xla { platform: Platform::named(platform)?, index: parse_index(index)? })
    }

    fn supports_forks(&self) -> bool {
        true
    }

    fn supports_process_groups(&self) -> bool {
        true
    }

    fn check_towers(&self, devices: &[Device]) -> Result<()> {
        let Some(&first) = devices.first() else { return Ok(()) };
        let (platform, index) = parts(first)?;
        for (tower, &device) in devices.iter().enumerate() {
            if parts(device)? != (platform, index + tower) {
                return Err(device_mismatch(tower, device, first)
                    .note("list contiguous devices of one platform, such as xla:cuda:0, xla:cuda:1"));
            }
        }
        Ok(())
    }

    fn create(&self, graph: &Frozen, options: &SessionOptions, turns: &Turns) -> Result<Box<dyn Executor>> {
        let (platform, index) = parts(options.device)?;
        let (group, interrupt) = (options.process_group.as_ref(), &options.interrupt);
        let options = XlaOptions {
            memory_limit: options.memory_limit,
            deadline: options.deadline,
            full_precision: options.full_precision,
            deterministic: options.deterministic,
            compile_cache_bytes: options.compile_cache_bytes,
            profile: options.profile,
        };
        Ok(Box::new(XlaExecutor::open(platform, index, options, group, graph.towers(), interrupt, turns)?))
    }
}
