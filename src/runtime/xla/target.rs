//! The devices that programs run on: one for each tower, from a first one on.

use super::clients;
use crate::runtime::{Device, Interrupt, Platform, memory_limit};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How the XLA engine works.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct XlaOptions {
    /// The most bytes of a device to use; `None`: all it has.
    pub(in crate::runtime) memory_limit: Option<usize>,
    /// The longest wait for a device.
    pub(in crate::runtime) deadline: Duration,
    /// Whether products of f32 keep all digits.
    pub(in crate::runtime) full_precision: bool,
    /// Whether two runs give the same bits.
    pub(in crate::runtime) deterministic: bool,
}

/// Devices of one client.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) client: Arc<pjrt::Client>,
    pub(super) options: XlaOptions,
    /// Looked at while the compiler works.
    pub(super) interrupt: Interrupt,
    platform: Platform,
    first: usize,
}

impl Target {
    /// The platform's devices from `first` on.
    pub(super) fn open(platform: Platform, first: usize, options: XlaOptions) -> Result<Target> {
        let client = clients::client(platform)?;
        let target = Target { client, options, interrupt: Interrupt::new(), platform, first };
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

    /// Whether the compiler keeps optimization barriers until it has fused operations. XLA does on
    /// GPUs, where it drops them once kernels are scheduled; on CPUs it drops them before.
    pub(super) fn keeps_barriers(&self) -> bool {
        self.platform != Platform::Cpu
    }

    /// How programs are compiled for the devices of these towers.
    pub(super) fn compile_options(&self, towers: Range<usize>) -> Result<pjrt::CompileOptions> {
        let count = towers.len();
        let ids = towers.map(|tower| Ok(self.device(tower)?.id())).collect::<Result<Vec<i64>>>()?;
        // Roundings to bf16 stay where the program has them. XLA would leave out those between operations that it
        // fuses; then what it writes to memory is f32, twice as long, and differs from what other engines compute.
        let rounded = pjrt::CompileOptions::new().setting("xla_allow_excess_precision", false);
        let options = rounded.replicas(count).devices(ids);
        Ok(match self.platform {
            // Other platforms have no faster way that is not.
            Platform::Cuda if self.options.deterministic => {
                options.setting("xla_gpu_deterministic_ops", true)
            }
            _ => options,
        })
    }

    /// Starts to copy a value to the device of a tower.
    pub(super) fn upload(&self, value: &HostTensor, tower: usize) -> Result<pjrt::Buffer> {
        self.client.upload(value, self.device(tower)?)
    }

    /// That so many bytes more can be had on the device of a tower.
    pub(super) fn check_memory(&self, bytes: usize, what: &str, tower: usize) -> Result<()> {
        let free = self.device(tower)?.memory().ok().and_then(|m| Some(m.limit?.saturating_sub(m.in_use)));
        let limit = self.options.memory_limit.or(free.map(|bytes| bytes as usize));
        memory_limit::check(bytes, &format!("{what} on {}", self.name(tower)), limit)
    }
}
