//! The reference models train as on the CPU engine.

use crate::device;
use crate::models::{Model, mlp, mnist, precise_mlp, precise_mnist, precise_small_resnet, small_resnet};
use tensorpack::HostTensor;
use tensorpack::dataflow::RandomAccess;
use tensorpack::dataflow::dataset::digits;
use tensorpack::graph::Fetch;
use tensorpack::runtime::{Device, Platform, Session, SessionOptions};

/// Batch size.
const BATCH: u64 = 10;

/// A model in a session.
struct Run {
    model: Model,
    session: Session,
    cost: Fetch,
    train: Fetch,
}

impl Run {
    fn new(build: fn() -> Model, device: Device) -> Run {
        let model = build();
        let (cost, train) = (Fetch::from(&model.cost), Fetch::from(&model.train));
        let options = SessionOptions {
            device,
            seed: 3,
            full_precision: true,
            deterministic: true,
            ..SessionOptions::default()
        };
        let session = Session::with(model.graph.clone().freeze().unwrap(), options).unwrap();
        Run { model, session, cost, train }
    }

    fn cost(&self, step: u64) -> f64 {
        self.cost_of(&self.model.batch(16, step))
    }

    fn cost_of(&self, [image, label]: &[HostTensor; 2]) -> f64 {
        let feeds = [("image", image), ("label", label)];
        self.session.run(&[&self.cost, &self.train], &feeds).unwrap()[0].to_scalar().unwrap()
    }
}

/// Compares the costs of the first steps with those on the CPU engine: in f32 on XLA's CPU device,
/// and in f64 on accelerators.
///
/// Rounding errors grow from step to step, because Adam divides a gradient by its magnitude even if
/// it is only what rounding leaves of terms that cancel. If every variable of `mnist` moves by one
/// ulp before each step, the cost of step 20 changes by 8e-3 in f32. XLA's CPU device adds in almost
/// the same order as the CPU engine, but a GPU does not.
fn compare(name: &str, single: fn() -> Model, double: fn() -> Model, steps: u64) {
    let Some(device) = device() else { return };
    let precise = !matches!(device, Device::Xla { platform: Platform::Cpu, .. });
    if precise {
        // Before the first update, f32 agrees everywhere.
        compare_costs(name, single, device, 1, 1e-4);
        compare_costs(name, double, device, steps, 1e-9);
    } else {
        compare_costs(name, single, device, steps, 1e-4);
    }
}

fn compare_costs(name: &str, build: fn() -> Model, device: Device, steps: u64, tolerance: f64) {
    let (right, found) = (Run::new(build, Device::Cpu(0)), Run::new(build, device));
    for step in 0..steps {
        let (a, b) = (right.cost(step), found.cost(step));
        assert!((a - b).abs() <= tolerance * a.abs(), "{name}, step {step}: {b}, on the CPU engine {a}");
    }
}

#[test]
fn fully_connected() {
    compare("mlp", mlp, precise_mlp, 20);
}

#[test]
fn convolutions_and_pooling() {
    compare("mnist", mnist, precise_mnist, 20);
}

/// Generated digits, different in every step.
fn digits_of(step: u64) -> [HostTensor; 2] {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for i in step * BATCH..(step + 1) * BATCH {
        let sample = digits::train().unwrap().get(i).unwrap();
        images.extend_from_slice(sample[0].as_slice::<f32>().unwrap());
        labels.push(sample[1].as_slice::<i32>().unwrap()[0]);
    }
    let batch = BATCH as usize;
    [HostTensor::new([batch, 28, 28, 1], images).unwrap(), HostTensor::new([batch], labels).unwrap()]
}

/// In f64, because rounding errors grow with every step: in f32, two orders of summation differ by
/// 1e-2 before step 100.
#[test]
fn a_hundred_steps_on_digits_agree_with_the_cpu_engine() {
    let Some(device) = device() else { return };
    let (right, found) = (Run::new(precise_mnist, Device::Cpu(0)), Run::new(precise_mnist, device));
    for step in 0..100 {
        let batch = digits_of(step);
        let (a, b) = (right.cost_of(&batch), found.cost_of(&batch));
        assert!((a - b).abs() <= 1e-9 * a, "step {step}: {b}, on the CPU engine {a}");
    }
}

#[test]
fn residuals_and_batch_norm() {
    compare("small_resnet", small_resnet, precise_small_resnet, 20);
}

#[test]
fn writing_back_what_was_read_changes_no_bit() {
    let Some(device) = device() else { return };
    let straight = Run::new(mlp, device);
    let (first, second) = (Run::new(mlp, device), Run::new(mlp, device));
    let names: Vec<String> = straight.session.graph().variables().iter().map(|v| v.name.clone()).collect();
    let costs: Vec<f64> = (0..6).map(|step| straight.cost(step)).collect();
    let mut again: Vec<f64> = (0..3).map(|step| first.cost(step)).collect();
    for name in &names {
        second.session.write(name, &first.session.read(name).unwrap()).unwrap();
    }
    again.extend((3..6).map(|step| second.cost(step)));
    assert_eq!(costs, again);
    for name in &names {
        let (a, b) = (straight.session.read(name).unwrap(), second.session.read(name).unwrap());
        assert_eq!(a, b, "{name}");
    }
}
