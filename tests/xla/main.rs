//! Training on the XLA engine with XLA's plugin for CPUs. Without the plugin every test is skipped,
//! or fails if `TENSORPACK_REQUIRE_PLUGIN` is set.

mod ahead;
mod asynchronous;
mod attention;
#[path = "../training/boundary_signal.rs"]
mod boundary_signal;
mod compile;
mod compile_cache;
#[path = "../training/counted_updates.rs"]
mod counted_updates;
#[cfg(target_os = "linux")]
mod device_kernels;
mod errors;
#[cfg(target_os = "linux")]
#[path = "../../crates/tensorpack-pjrt/tests/fake_plugin/mod.rs"]
mod fake_plugin;
mod feeds;
mod integers;
#[path = "../models/mod.rs"]
mod models;
mod loops;
mod not_finite;
#[cfg(target_os = "linux")]
mod opening;
#[path = "../optimizers/overflow_cases.rs"]
mod overflow_cases;
#[path = "../training/overflow_cases.rs"]
mod overflow_in_training;
mod processes;
mod recomputed;
mod resume;
mod rows;
mod scalars;
mod several_steps;
mod sharded_updates;
mod staging;
mod steps;
mod timeline;
mod tower_batch_sizes;
mod towers;
#[path = "../training/trace.rs"]
mod trace;

use std::path::{Path, PathBuf};
use std::process::Command;
use tensorpack::graph::Graph;
use tensorpack::runtime::{Device, Platform, Session, SessionOptions};
use tensorpack_testing::{Requirement, skip};

/// Returns XLA's first device of the platform that `TENSORPACK_XLA_TEST_DEVICE` names (defaults to
/// the CPU), if there is a plugin for it.
#[track_caller]
fn device() -> Option<Device> {
    let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
    let device: Device = name.parse().unwrap();
    let Device::Xla { platform, .. } = device else { panic!("{name} is not an XLA device") };
    tensorpack_testing::plugin_for_tests(platform.name()).map(|_| device)
}

/// Returns the first `count` devices of that platform. Skips the test and returns `None` if the
/// platform has fewer; XLA's CPU plugin always has enough.
#[track_caller]
fn devices(count: usize) -> Option<Vec<Device>> {
    let Device::Xla { platform, .. } = device()? else { return None };
    let devices: Vec<Device> = (0..count).map(|index| Device::Xla { platform, index }).collect();
    let options = SessionOptions { device: *devices.last()?, ..SessionOptions::default() };
    match Session::with(Graph::new().freeze().unwrap(), options) {
        Ok(_) => Some(devices),
        Err(e) if platform == Platform::Cpu => panic!("{e}"),
        Err(e) => {
            skip(Requirement::Devices, &format!("it needs {count} devices: {}", e.message()));
            None
        }
    }
}

/// Returns a library that acts as a plugin, from its source text. Skips the test and returns `None` on
/// machines without a compiler.
#[cfg(target_os = "linux")]
#[track_caller]
fn fake_plugin(folder: &Path, name: &str, text: &str) -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    if Command::new(rustc).arg("--version").output().is_err() {
        skip(Requirement::Tool, "there is no rustc");
        return None;
    }
    Some(fake_plugin::build(folder, name, text))
}

/// A command that runs one test of this binary in a child process. The caller sets environment
/// variables to tell it what to do.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test binary"));
    command.args(["--exact", test, "--nocapture"]);
    command
}
