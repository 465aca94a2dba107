//! Tracks the utilization and memory of GPUs.

use super::{Callback, TrainCx};
use crate::runtime::Nvml;
use tensorpack_tensor::Result;

/// Reports for every NVIDIA GPU of the machine, at every trigger, `GPU0 utilization (%)` and
/// `GPU0 memory (GB)`, the memory in use by all processes. They depend on the clock, and go to
/// `timing.jsonl`. The utilization is that of the moment of the trigger: trigger it during an
/// epoch, with [`PeriodicTrigger`](super::PeriodicTrigger), to see that of training.
///
/// Without NVIDIA's driver, training ends with an error before the first step.
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "GPUUtilizationTracker")]
#[doc(alias = "GPUMemoryTracker")]
pub struct GpuTracker {
    nvml: Option<Nvml>,
}

impl GpuTracker {
    /// Creates the callback.
    pub fn new() -> GpuTracker {
        GpuTracker::default()
    }
}

impl Callback for GpuTracker {
    fn chief_only(&self) -> bool {
        true
    }

    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.nvml = Some(Nvml::open()?);
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let gpus = self.nvml.map_or_else(|| Ok(Vec::new()), |nvml| nvml.gpus())?;
        for (i, gpu) in gpus.into_iter().enumerate() {
            cx.put_timing(&format!("GPU{i} utilization (%)"), f64::from(gpu.percent));
            cx.put_timing(&format!("GPU{i} memory (GB)"), gpu.used as f64 / 1e9);
        }
        Ok(())
    }
}
