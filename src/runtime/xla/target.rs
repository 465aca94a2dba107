//! The devices that programs run on: one for each tower, from a first one on.

use super::clients;
use crate::runtime::{Device, Platform, memory_limit};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How far the engine may go.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Limits {
    /// The most bytes of a device to use; `None`: all it has.
    pub(in crate::runtime) memory: Option<usize>,
    /// The longest wait for a device.
    pub(in crate::runtime) wait: Duration,
}

/// Devices of one client.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) client: Arc<pjrt::Client>,
    pub(super) limits: Limits,
    platform: Platform,
    first: usize,
}

impl Target {
    /// The platform's devices from `first` on.
    pub(super) fn open(platform: Platform, first: usize, limits: Limits) -> Result<Target> {
        let target = Target { client: clients::client(platform)?, limits, platform, first };
        target.device(0)?;
        Ok(target)
    }

    /// The device of a tower.
    pub(super) fn device(&self, tower: usize) -> Result<&pjrt::Device> {
        let (devices, index) = (self.client.devices(), self.first + tower);
        devices.get(index).ok_or_else(|| {
            let (name, platform) = (self.name(tower), self.platform.name());
            let why = format!("{name} is not there: xla:{platform} has {} devices", devices.len());
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// What users call the device of a tower.
    pub(super) fn name(&self, tower: usize) -> String {
        Device::Xla { platform: self.platform, index: self.first + tower }.to_string()
    }

    /// Starts to copy a value to the device of a tower.
    pub(super) fn upload(&self, value: &HostTensor, tower: usize) -> Result<pjrt::Buffer> {
        self.client.upload(value, self.device(tower)?)
    }

    /// That so many bytes more can be had on the device of a tower.
    pub(super) fn check_memory(&self, bytes: usize, what: &str, tower: usize) -> Result<()> {
        let free = self.device(tower)?.memory().ok().and_then(|m| Some(m.limit?.saturating_sub(m.in_use)));
        let limit = self.limits.memory.or(free.map(|bytes| bytes as usize));
        memory_limit::check(bytes, &format!("{what} on {}", self.name(tower)), limit)
    }
}
