//! Training on XLA that was stopped goes on to the bit.

use crate::device;
use crate::models::mlp;
use std::path::Path;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// Two layers with dropout, so that random numbers must go on too.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("image", [None, Some(784)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(32).relu().apply(t, "fc0", &inputs[0]).dropout(0.3);
        Linear::new(10).apply(t, "fc1", &x).sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

/// Trains up to an epoch, in a folder that may hold earlier ones; what variables hold in the end.
fn train(dir: &Path, device: Device, epochs: u64) -> Vec<HostTensor> {
    let data = FromFn::new(1000, |index| Ok(mlp().batch(8, index).into()));
    let config = TrainConfig::new(Net, data)
        .session(SessionOptions { device, deterministic: true, ..SessionOptions::default() })
        .callback(ModelSaver::default())
        .steps_per_epoch(3)
        .max_epoch(epochs)
        .logdir(dir);
    let session = launch_train_with_config(config, SimpleTrainer::new()).unwrap().session;
    session.graph().variables().iter().map(|v| session.read(&v.name).unwrap()).collect()
}

#[test]
fn a_run_that_was_taken_up_again_ends_as_one_that_was_not() {
    let Some(device) = device() else { return };
    let [straight, stopped] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let right = train(straight.path(), device, 3);
    train(stopped.path(), device, 1);
    assert!(train(stopped.path(), device, 3) == right, "the weights differ");
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!(stats(straight.path()), stats(stopped.path()));
}
