//! Tracks free host memory.

use super::{Callback, Statistic, TrainCx, When};
use crate::runtime::available_memory;
use tensorpack_tensor::Result;

/// Reports the memory still available to this process, on the machine or within its cgroup limit,
/// as `HostFreeMemory (GB)`. Reports nothing where the system does not expose it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemoryTracker {}

const TAG: &str = "HostFreeMemory (GB)";

impl HostMemoryTracker {
    /// Creates the callback.
    pub fn new() -> HostMemoryTracker {
        HostMemoryTracker::default()
    }
}

fn free_gigabytes() -> Option<f64> {
    available_memory().map(|bytes| bytes as f64 / 1e9)
}

impl Callback for HostMemoryTracker {
    fn chief_only(&self) -> bool {
        true
    }

    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        match free_gigabytes() {
            Some(gb) => log::info!("free memory before training: {gb:.2} GB"),
            None => log::warn!("the amount of free memory is unavailable on this system"),
        }
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if let Some(gb) = free_gigabytes() {
            cx.put_timing(TAG, gb);
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        vec![Statistic::new(TAG, When::Epoch)]
    }
}
