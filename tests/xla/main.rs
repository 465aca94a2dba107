//! Training on the XLA engine, through XLA's plugin for CPUs. Without it nothing is tried, which is said; where
//! `TENSORPACK_REQUIRE_PLUGIN` is set that is a failure.

#[path = "../models/mod.rs"]
mod models;
mod not_finite;
mod rows;
mod steps;
mod towers;

use tensorpack::runtime::{Device, Platform};

/// XLA on this machine's processor, if the plugin is there.
fn device() -> Option<Device> {
    tensorpack_pjrt::plugin_for_tests("cpu").map(|_| Device::Xla { platform: Platform::Cpu, index: 0 })
}
