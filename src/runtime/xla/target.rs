//! The devices of a session: one per tower, contiguous from the first.

use super::clients;
use crate::runtime::{Device, Interrupt, Platform, memory_limit};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Options of the XLA engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct XlaOptions {
    /// The limit for device memory in bytes; `None` means all of it.
    pub(in crate::runtime) memory_limit: Option<usize>,
    /// The timeout of waits for a device.
    pub(in crate::runtime) deadline: Duration,
    /// Whether f32 products are computed in full precision.
    pub(in crate::runtime) full_precision: bool,
    /// Whether results are bit-reproducible.
    pub(in crate::runtime) deterministic: bool,
}

/// Devices of one client.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) client: Arc<pjrt::Client>,
    pub(super) options: XlaOptions,
    /// Checked while the plugin is opened and while the compiler runs.
    pub(super) interrupt: Interrupt,
    platform: Platform,
    first: usize,
}

impl Target {
    /// Opens the devices of a platform, starting with index `first`.
    pub(super) fn open(
        platform: Platform,
        first: usize,
        options: XlaOptions,
        interrupt: &Interrupt,
    ) -> Result<Target> {
        let client = clients::client(platform, options.deadline, interrupt)?;
        let target = Target { client, options, interrupt: interrupt.clone(), platform, first };
        target.device(0)?;
        Ok(target)
    }

    /// Returns the device of a tower, or an error if the platform has fewer devices.
    pub(super) fn device(&self, tower: usize) -> Result<&pjrt::Device> {
        let (devices, index) = (self.client.devices(), self.first + tower);
        devices.get(index).ok_or_else(|| {
            let (name, platform) = (self.name(tower), self.platform.name());
            let why = format!("{name} does not exist: xla:{platform} has {} devices", devices.len());
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// Returns the name of the device of a tower, such as `xla:cuda:0`.
    pub(super) fn name(&self, tower: usize) -> String {
        Device::Xla { platform: self.platform, index: self.first + tower }.to_string()
    }

    /// Whether the compiler keeps optimization barriers until it has fused operations. XLA does on
    /// GPUs, where it drops them once kernels are scheduled; on CPUs it drops them before.
    pub(super) fn keeps_barriers(&self) -> bool {
        self.platform != Platform::Cpu
    }

    /// Returns the compile options for the devices of these towers.
    pub(super) fn compile_options(&self, towers: Range<usize>) -> Result<pjrt::CompileOptions> {
        let count = towers.len();
        let ids = towers.map(|tower| Ok(self.device(tower)?.id())).collect::<Result<Vec<i64>>>()?;
        // Keep all roundings to bf16. XLA would drop those between operations that it fuses; it
        // would then write f32 to memory, twice the size, and differ from the other engines.
        let rounded = pjrt::CompileOptions::new().setting("xla_allow_excess_precision", false);
        let options = rounded.replicas(count).devices(ids);
        Ok(match self.platform {
            // On other platforms all algorithms are deterministic.
            Platform::Cuda if self.options.deterministic => {
                options.setting("xla_gpu_deterministic_ops", true)
            }
            _ => options,
        })
    }

    /// Starts to upload a value to the device of a tower.
    pub(super) fn upload(&self, value: &HostTensor, tower: usize) -> Result<pjrt::Buffer> {
        self.client.upload(value, self.device(tower)?)
    }

    /// Checks that the device of a tower has this much free memory.
    pub(super) fn check_memory(&self, bytes: usize, what: &str, tower: usize) -> Result<()> {
        let free = self.device(tower)?.memory().ok().and_then(|m| Some(m.limit?.saturating_sub(m.in_use)));
        let limit = self.options.memory_limit.or(free.map(|bytes| bytes as usize));
        memory_limit::check(bytes, &format!("{what} on {}", self.name(tower)), limit)
    }
}
