//! Training on the XLA engine with XLA's CPU plugin. Without the plugin the tests print that they
//! are skipped, or fail if `TENSORPACK_REQUIRE_PLUGIN` is set.

mod ahead;
mod compile;
mod errors;
mod feeds;
mod integers;
#[path = "../models/mod.rs"]
mod models;
mod not_finite;
#[path = "../optimizers/overflow_cases.rs"]
mod overflow_cases;
#[path = "../training/overflow_cases.rs"]
mod overflow_in_training;
mod recomputed;
mod resume;
mod rows;
mod staging;
mod steps;
mod towers;
mod mismatched_batches;

use std::io::Write;
use std::process::Command;
use tensorpack::graph::Graph;
use tensorpack::runtime::{Device, Platform, Session, SessionOptions};

/// XLA's first device, of the platform that `TENSORPACK_XLA_TEST_DEVICE` names or this machine's processor, if there
/// is a plugin for it.
fn device() -> Option<Device> {
    let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
    let device: Device = name.parse().unwrap();
    let Device::Xla { platform, .. } = device else { panic!("{name} is no XLA device") };
    tensorpack_pjrt::plugin_for_tests(platform.name()).map(|_| device)
}

/// The first devices of that platform, for tests that need several. Where a platform has fewer nothing is tried, which is
/// said; XLA's shares of the processor are always enough.
fn devices(count: usize) -> Option<Vec<Device>> {
    let Device::Xla { platform, .. } = device()? else { return None };
    let devices: Vec<Device> = (0..count).map(|index| Device::Xla { platform, index }).collect();
    let options = SessionOptions { device: *devices.last()?, ..SessionOptions::default() };
    match Session::with(Graph::new().freeze().unwrap(), options) {
        Ok(_) => Some(devices),
        Err(e) if platform == Platform::Cpu => panic!("{e}"),
        Err(e) => {
            // Not `eprintln`, which tests that pass do not show.
            let test = std::thread::current().name().unwrap_or("a test").to_string();
            let _ = writeln!(
                std::io::stderr(),
                "{test} is passed over, as it needs {count} devices: {}",
                e.message()
            );
            None
        }
    }
}

/// This program once more, running one test alone, which the caller tells by the environment what to do.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
    command.args(["--exact", test, "--nocapture"]);
    command
}
