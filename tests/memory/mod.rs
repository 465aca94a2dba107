//! Memory: recompute blocks, limits on the planned memory, and the largest batch.

mod limit;
mod recompute;

use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

/// Returns normal random numbers.
fn random(name: &str, sizes: &[usize]) -> HostTensor {
    let rng = CounterRng::new(3, name);
    let values: Vec<f64> = (0..sizes.iter().product::<usize>() as u64).map(|i| rng.normal(0, i)).collect();
    HostTensor::from_f64(DType::F32, sizes, &values).unwrap()
}

/// Returns the bytes of the arena, which holds all temporaries, from the text of a plan.
fn arena_bytes(plan: &str) -> usize {
    let line = plan.lines().find(|l| l.starts_with("arena")).expect("the plan states the arena");
    line.split(' ').nth(1).expect("a number").parse().unwrap()
}

/// The XLA device to test, if its plugin is installed: `TENSORPACK_XLA_TEST_DEVICE`, or `xla:cpu:0`.
fn xla_device() -> Option<Device> {
    let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
    let device: Device = name.parse().unwrap();
    let Device::Xla { platform, .. } = device else { panic!("{name} is no XLA device") };
    tensorpack_testing::plugin_for_tests(platform.name()).map(|_| device)
}

/// The devices to test: the CPU engine, and XLA if its plugin is installed.
fn devices() -> Vec<Device> {
    [Device::default()].into_iter().chain(xla_device()).collect()
}
