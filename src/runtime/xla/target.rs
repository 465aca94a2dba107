//! The devices of a session: one per tower, contiguous from the first.

use super::clients::{self, Peers};
use super::compile_cache::CompileCache;
use super::module::ModuleOptions;
use super::replicas::Replicas;
use crate::distributed::ProcessGroup;
use crate::runtime::executor::DeviceMemory;
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
    /// The size limit in bytes of the compile cache; `None` means the default, 0 means no cache.
    pub(in crate::runtime) compile_cache_bytes: Option<u64>,
    /// Whether to measure what the host spends on launches.
    pub(in crate::runtime) profile: bool,
}

/// Devices of one client.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) client: Arc<pjrt::Client>,
    pub(super) options: XlaOptions,
    /// Checked while the plugin is opened and while the compiler runs.
    pub(super) interrupt: Interrupt,
    platform: Platform,
    /// The index of the first tower's device on the platform.
    first: usize,
    /// The index of the client's first device on the platform.
    first_of_client: usize,
    /// The other processes of the run, if there are any.
    peers: Option<Peers>,
    /// The compiled programs on disk.
    pub(super) compile_cache: Option<Arc<CompileCache>>,
}

impl Target {
    /// Opens the devices of a platform, starting with index `first`. With a group, waits until the
    /// other processes have done so, too.
    pub(super) fn open(
        platform: Platform,
        first: usize,
        options: XlaOptions,
        group: Option<&Arc<ProcessGroup>>,
        towers: usize,
        interrupt: &Interrupt,
    ) -> Result<Target> {
        let compile_cache = CompileCache::open(options.compile_cache_bytes)?.map(Arc::new);
        let open = clients::client(platform, first, group, towers, &options, interrupt)?;
        let target = Target {
            client: open.client,
            options,
            interrupt: interrupt.clone(),
            platform,
            first,
            first_of_client: open.first,
            compile_cache: compile_cache.filter(|_| open.peers.is_none()),
            peers: open.peers,
        };
        target.device(0)?;
        Ok(target)
    }

    /// Returns the device of a tower, or an error if the platform has fewer devices.
    pub(super) fn device(&self, tower: usize) -> Result<&pjrt::Device> {
        let devices = self.client.devices();
        let index = (self.first + tower).checked_sub(self.first_of_client);
        index.and_then(|index| devices.get(index)).ok_or_else(|| {
            let (name, platform) = (self.name(tower), self.platform.name());
            let why = format!("{name} does not exist: xla:{platform} has {} devices", devices.len());
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// Returns the name of the device of a tower, such as `xla:cuda:0`.
    pub(super) fn name(&self, tower: usize) -> String {
        Device::Xla { platform: self.platform, index: self.first + tower }.to_string()
    }

    /// Returns what modules for these devices may contain.
    pub(super) fn module_options(&self) -> ModuleOptions {
        ModuleOptions {
            full_precision: self.options.full_precision,
            // XLA keeps barriers on GPUs, where it drops them once kernels are scheduled; on CPUs it
            // drops them before it fuses operations.
            barriers: self.platform != Platform::Cpu,
            // Its gradient adds up in an order that varies.
            fused_attention: self.platform == Platform::Cuda && !self.options.deterministic,
        }
    }

    /// Returns the replicas on the devices of all processes of a program that runs the first `towers`
    /// towers of each, or `None` if there is one process.
    pub(super) fn replicas(&self, towers: usize) -> Option<Replicas> {
        self.peers.as_ref().map(|peers| peers.devices.replicas(towers))
    }

    /// Waits for a download. If another process fails meanwhile, returns the error that names it.
    pub(super) fn wait(&self, download: pjrt::Download) -> Result<HostTensor> {
        if self.peers.is_none() {
            return download.wait(self.options.deadline);
        }
        let value = download.wait_checking(self.options.deadline, || self.check_aborted());
        value.map_err(|e| self.explain(e))
    }

    /// Returns this target with the deadline of a launch of several steps: one for each.
    pub(super) fn with_deadline_of(&self, steps: usize) -> Target {
        let deadline = self.options.deadline.saturating_mul(steps.try_into().unwrap_or(u32::MAX));
        Target { options: XlaOptions { deadline, ..self.options }, ..self.clone() }
    }

    /// Returns an error if another process has failed, and what waits for it has had time to end.
    pub(super) fn check_aborted(&self) -> Result<()> {
        self.peers.as_ref().map_or(Ok(()), |peers| peers.watch.check_aborted())
    }

    /// Returns an error if another process has failed.
    pub(super) fn check_peers(&self) -> Result<()> {
        self.peers.as_ref().map_or(Ok(()), |peers| peers.watch.check())
    }

    /// Returns the error of another process if its failure caused this one.
    pub(super) fn explain(&self, error: Error) -> Error {
        match &self.peers {
            Some(peers) => peers.watch.explain(error, &self.client),
            None => error,
        }
    }

    /// Returns the ids of the devices of these towers.
    pub(super) fn device_ids(&self, towers: Range<usize>) -> Result<Vec<i64>> {
        towers.map(|tower| Ok(self.device(tower)?.id())).collect()
    }

    /// Returns the compile options for these devices, one per replica.
    pub(super) fn compile_options(&self, ids: Vec<i64>) -> pjrt::CompileOptions {
        let count = ids.len();
        // Keep all roundings to bf16. XLA would drop those between operations that it fuses; it
        // would then write f32 to memory, twice the size, and differ from the other engines.
        let rounded = pjrt::CompileOptions::new().setting("xla_allow_excess_precision", false);
        let options = rounded.replicas(count).devices(ids);
        match self.platform {
            // On other platforms all algorithms are deterministic.
            Platform::Cuda | Platform::Rocm if self.options.deterministic => {
                options.setting("xla_gpu_deterministic_ops", true)
            }
            // With "fast" maxima and minima, NaN would be replaced by the other operand. The newer emitters
            // of fusions split them into functions and call one for every use of its result: the time
            // of long chains of scalars, such as the steps of a loop, would double every few operations.
            Platform::Cpu => options
                .setting("xla_cpu_enable_fast_min_max", false)
                .setting("xla_cpu_use_fusion_emitters", false),
            _ => options,
        }
    }

    /// Starts to upload a value to the device of a tower.
    pub(super) fn upload(&self, value: &HostTensor, tower: usize) -> Result<pjrt::Buffer> {
        self.client.upload(value, self.device(tower)?)
    }

    /// Returns the free memory of the device of a tower, if the plugin reports it.
    pub(super) fn free_memory(&self, tower: usize) -> Result<Option<usize>> {
        let free = |m: pjrt::MemoryStats| Some(m.limit?.saturating_sub(m.in_use) as usize);
        Ok(self.device(tower)?.memory().ok().and_then(free))
    }

    /// Returns the memory of the device of a tower, if the plugin reports it.
    pub(super) fn device_memory(&self, tower: usize) -> Result<Option<DeviceMemory>> {
        let all =
            |m: pjrt::MemoryStats| Some(DeviceMemory { in_use: m.in_use, peak: m.peak?, limit: m.limit? });
        Ok(self.device(tower)?.memory().ok().and_then(all))
    }

    /// Checks that the device of a tower has this much free memory.
    pub(super) fn check_memory(&self, bytes: usize, what: &str, tower: usize) -> Result<()> {
        let limit = self.options.memory_limit.or(self.free_memory(tower)?);
        memory_limit::check(bytes, &format!("{what} on {}", self.name(tower)), limit)
    }
}
