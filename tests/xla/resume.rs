//! Training on XLA is reproducible to the bit, and so is training that was interrupted and resumed.

use crate::boundary_signal::InterruptedAtTheBoundary;
use crate::compile::latest;
use crate::{child, device};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use tensorpack::callback::{RunOp, TrainCx};
use tensorpack::dataflow::FromFn;
use tensorpack::graph::TRAINABLE_VARIABLES;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::QueueInputTrainer;

const STEPS: u64 = 4;

/// Convolutions, pooling, batch normalization and dropout: operations that GPUs may compute in a
/// different order each time, and random numbers that must continue after a resume.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Conv2d::new(8, 3).no_bias().apply(t, "conv0", &inputs[0]);
        let x = BatchNorm::new().relu().apply(t, "bn", &x).max_pool(2);
        let x = Conv2d::new(8, 3).relu().apply(t, "conv1", &x).dropout(0.3);
        let cost = Linear::new(10).apply(t, "fc", &x).sparse_softmax_cross_entropy(&inputs[1]).mean();
        let cost = cost.named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

fn batches() -> FromFn {
    FromFn::new(1000, |index| {
        let rng = CounterRng::new(5, "images");
        let image = (0..8 * 192).map(|i| rng.normal(index, i) as f32).collect();
        let label = (0..8).map(|i| (rng.word(index + 1000, i) % 10) as i32).collect();
        Ok(vec![HostTensor::new([8, 8, 8, 3], image)?, HostTensor::new([8], label)?])
    })
}

/// Saves a checkpoint after a step, and fails after the next one.
struct Fails {
    after: u64,
}

impl Callback for Fails {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.after {
            cx.request_save();
        }
        if cx.global_step > self.after { Err(Error::argument("cut short")) } else { Ok(()) }
    }
}

/// Trains for two epochs or until an error, resuming an earlier attempt in the folder. Returns the
/// variables.
fn train(dir: &Path, device: Device, callbacks: Vec<Box<dyn Callback>>) -> Result<Vec<HostTensor>> {
    let config = TrainConfig::new(Net, batches())
        .session(SessionOptions { device, deterministic: true, ..SessionOptions::default() })
        .callback(ModelSaver::default())
        .callbacks(callbacks)
        .steps_per_epoch(STEPS)
        .max_epoch(2)
        .logdir(dir);
    let session = launch_train_with_config(config, QueueInputTrainer::new())?.session;
    session.graph().variables().iter().map(|v| session.read(&v.name)).collect()
}

fn statistics(dir: &Path) -> String {
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
    read("stats.jsonl") + &read("steps.jsonl")
}

#[test]
fn repeated_and_resumed_runs_are_bit_identical() {
    let Some(device) = device() else { return };
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let right = train(first.path(), device, Vec::new()).unwrap();
    assert!(train(second.path(), device, Vec::new()).unwrap() == right, "a second run has different weights");
    assert_eq!(statistics(first.path()), statistics(second.path()));
    // In the middle of an epoch, at its end, and after the first step of the next one.
    for after in [2, STEPS, STEPS + 1] {
        let dir = tempfile::tempdir().unwrap();
        let e = train(dir.path(), device, vec![Box::new(Fails { after })]).unwrap_err();
        assert!(e.message().ends_with("cut short"), "{e}");
        let found = train(dir.path(), device, Vec::new()).unwrap();
        assert!(found == right, "interrupted after step {after}: the weights differ");
        assert_eq!(statistics(dir.path()), statistics(first.path()), "interrupted after step {after}");
    }
}

const INTERRUPTED_DIR: &str = "TENSORPACK_TEST_INTERRUPTED";

/// The child process: a run doubles all weights at the first boundary, and a write changes one more.
#[test]
fn child_interrupted_at_the_boundary() {
    let (Some(dir), Some(device)) = (std::env::var_os(INTERRUPTED_DIR), device()) else { return };
    let double = RunOp::new(|g| {
        let weights = g.graph().collection(TRAINABLE_VARIABLES).variables;
        let doubled: Vec<_> =
            weights.iter().map(|id| g.graph().variable_handle(*id).update(|w| w * 2.0)).collect();
        Ok(g.graph().group(&doubled.iter().collect::<Vec<_>>()))
    });
    let callbacks: Vec<Box<dyn Callback>> =
        vec![Box::new(double.no_before_train()), Box::new(InterruptedAtTheBoundary)];
    let ended = train(Path::new(&dir), device, callbacks);
    panic!("training continued: {:?}", ended.map(|variables| variables.len()));
}

/// A signal inside an epoch boundary saves the variables from before the boundary, though callbacks
/// have changed them on the device.
#[test]
fn a_signal_at_the_boundary_saves_the_variables_from_before_it() {
    let Some(device) = device() else { return };
    let [whole, dir] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let right = train(whole.path(), device, Vec::new()).unwrap();
    let mut command = child("resume::child_interrupted_at_the_boundary");
    let output = command.env(INTERRUPTED_DIR, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    assert_eq!(latest(dir.path()).global_step, STEPS, "{text}");
    let found = train(dir.path(), device, Vec::new()).unwrap();
    assert!(found == right, "the weights differ: {text}");
    assert_eq!(statistics(dir.path()), statistics(whole.path()));
}
