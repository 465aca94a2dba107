//! Towers with batches of different sizes. Without all-reduces each tower runs its own program;
//! with them the batch sizes must be equal.

use crate::{device, devices};
use tensorpack::ErrorKind;
use tensorpack::dataflow::FromList;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(4)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(8).apply(t, "fc0", &inputs[0]).tanh();
        (Linear::new(1).apply(t, "fc1", &x) - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// Returns batches of these sizes.
fn batches(sizes: &[usize]) -> FromList {
    let batch = |(i, &rows): (usize, &usize)| {
        let values =
            |n: usize, by: usize| (0..n).map(|k| ((k * by + i) % 9) as f32 / 9.0).collect::<Vec<f32>>();
        let x = HostTensor::new([rows, 4], values(rows * 4, 5)).unwrap();
        vec![x, HostTensor::new([rows, 1], values(rows, 7)).unwrap()]
    };
    FromList::new(sizes.iter().enumerate().map(batch).collect())
}

/// Returns the validation cost of two towers on batches, the last of which is smaller.
fn validated(device: Device) -> f64 {
    let validation = InferenceRunner::new(batches(&[6, 6, 6, 5]), [ScalarStats::new("cost")]).towers(2);
    let config = TrainConfig::new(Net, batches(&[6, 6]))
        .callback(validation)
        .session(SessionOptions { device, full_precision: true, ..SessionOptions::default() })
        .max_epoch(2)
        .no_logdir();
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    trained.monitors.latest("validation_cost").unwrap()
}

#[test]
fn validation_with_different_batch_sizes_agrees_with_the_cpu_engine() {
    let (Some(device), Some(_)) = (device(), devices(2)) else { return };
    let (found, right) = (validated(device), validated(Device::Cpu(0)));
    assert!((found - right).abs() <= 1e-5 * right.abs(), "{found}, on the CPU engine {right}");
}

#[test]
fn training_with_different_batch_sizes_is_an_error() {
    let Some(devices) = devices(2) else { return };
    let config = TrainConfig::new(Net, batches(&[6, 5])).steps_per_epoch(1).max_epoch(1).no_logdir();
    let e = launch_train_with_config(config, SyncMultiGpuTrainerReplicated::on(devices)).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_mentions(&e, &["tower 1", "sizes"]);
}
