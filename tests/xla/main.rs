//! Training on the XLA engine, through XLA's plugin for CPUs. Without it nothing is tried, which is said; where
//! `TENSORPACK_REQUIRE_PLUGIN` is set that is a failure.

mod feeds;
#[path = "../models/mod.rs"]
mod models;
mod not_finite;
mod resume;
mod rows;
mod staging;
mod steps;
mod towers;

use tensorpack::runtime::Device;

/// XLA's first device, of the platform that `TENSORPACK_XLA_TEST_DEVICE` names or this machine's processor, if there
/// is a plugin for it.
fn device() -> Option<Device> {
    let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
    let device: Device = name.parse().unwrap();
    let Device::Xla { platform, .. } = device else { panic!("{name} is no XLA device") };
    tensorpack_pjrt::plugin_for_tests(platform.name()).map(|_| device)
}
