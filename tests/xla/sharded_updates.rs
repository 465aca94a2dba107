//! Updates that are divided over devices: `SyncMultiGpuTrainerParameterServer`.

use crate::devices;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::graph::Sharding;
use tensorpack::optim::gradproc::GlobalNormClip;
use tensorpack::optim::{Accumulate, Ema, Lamb, Optimizer, ParamGroups, RmsProp};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{SingleCostTrainer, Trained};

type MakeOptimizer = fn() -> Box<dyn Optimizer>;

/// A net with a large variable that two devices divide evenly, and one that they cannot.
struct Net {
    optimizer: MakeOptimizer,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["x", "y"].map(|name| TensorSpec::new(name, DType::F64, [None, Some(5)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(61).apply(t, "fc0", &inputs[0]).tanh();
        let x = Linear::new(16).apply(t, "fc1", &x).tanh();
        (Linear::new(5).apply(t, "fc2", &x) - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

fn batches() -> FromFn {
    FromFn::new(u64::MAX / 2, |index| {
        let rng = CounterRng::new(9, "examples");
        let part = |stream: u64| {
            let values: Vec<f64> = (0..20).map(|i| rng.normal(stream, index * 20 + i)).collect();
            HostTensor::from_f64(DType::F64, [4, 5], &values)
        };
        Ok(vec![part(0)?, part(1)?])
    })
}

fn config(optimizer: MakeOptimizer) -> TrainConfig {
    TrainConfig::new(Net { optimizer }, batches()).steps_per_epoch(7).max_epoch(1)
}

/// Returns all variables, as checkpoints contain them.
fn variables(trained: &Trained) -> Vec<(String, Vec<f64>)> {
    let read = |name: &str| trained.session.read(name).unwrap().to_f64_vec();
    trained.session.graph().variables().iter().map(|v| (v.name.clone(), read(&v.name))).collect()
}

fn train(optimizer: MakeOptimizer, trainer: impl Into<SingleCostTrainer>) -> Trained {
    launch_train_with_config(config(optimizer).no_logdir(), trainer).unwrap()
}

fn assert_close(found: &[(String, Vec<f64>)], right: &[(String, Vec<f64>)], what: &str) {
    assert_eq!(found.len(), right.len(), "{what}");
    for ((name, a), (_, b)) in found.iter().zip(right) {
        assert_eq!(a.len(), b.len(), "{what}: {name}");
        let off = a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f64::max);
        assert!(off < 1e-11, "{what}: {name} differs by {off}");
    }
}

#[test]
fn every_optimizer_trains_as_on_replicas() {
    let optimizers: [(&str, MakeOptimizer); 7] = [
        ("SGD", || Sgd::new(0.1).boxed()),
        ("momentum with decay", || {
            ParamGroups::new(Momentum::new(0.1, 0.9)).group(".*/W", |g| g.decay(1e-3)).boxed()
        }),
        ("Adam", || Adam::new(0.01).boxed()),
        ("RMSProp", || RmsProp::new(0.01).boxed()),
        // Its step length is a norm of whole tensors.
        ("LAMB", || Lamb::new(0.01).boxed()),
        ("clipped Adam with averages", || {
            Ema::new(Adam::new(0.01).process(GlobalNormClip::new(0.1)), 0.9).boxed()
        }),
        // Three steps remain for the end of the run.
        ("accumulated Adam", || Accumulate::new(Adam::new(0.01), 4).boxed()),
    ];
    for (i, (name, optimizer)) in optimizers.into_iter().enumerate() {
        let count = 2 + i % 2;
        let Some(devices) = devices(count) else { return };
        let right = train(optimizer, SyncMultiGpuTrainerReplicated::on(devices.clone()));
        let found = train(optimizer, SyncMultiGpuTrainerParameterServer::on(devices));
        assert_close(&variables(&found), &variables(&right), &format!("{name} on {count} devices"));
        let infos = found.session.graph().variables();
        let divided = infos.iter().filter(|v| v.sharding == Sharding::State).count();
        assert_eq!(divided > 0, name != "SGD", "{name}");
    }
}

/// Such towers run programs of their own up to the sums over them.
#[test]
fn towers_with_batches_of_different_sizes_train_as_on_replicas() {
    let optimizers: [(&str, MakeOptimizer); 3] = [
        ("Adam", || Adam::new(0.01).boxed()),
        ("LAMB", || Lamb::new(0.01).boxed()),
        ("accumulated, clipped momentum with averages", || {
            let clipped = Momentum::new(0.1, 0.9).process(GlobalNormClip::new(0.1));
            Ema::new(Accumulate::new(clipped, 2), 0.9).boxed()
        }),
    ];
    for (i, (name, optimizer)) in optimizers.into_iter().enumerate() {
        let count = 2 + i % 2;
        let Some(devices) = devices(count) else { return };
        let train = |trainer: SingleCostTrainer| {
            // Some batches have one example less.
            let cut = |mut sample: Vec<HostTensor>| {
                if sample[0].to_f64_vec()[0] > 0.5 {
                    for value in &mut sample {
                        *value = HostTensor::from_f64(DType::F64, [3, 5], &value.to_f64_vec()[..15])?;
                    }
                }
                Ok(sample)
            };
            let config = TrainConfig::new(Net { optimizer }, batches().map(cut));
            let config = config.steps_per_epoch(7).max_epoch(1).no_logdir();
            variables(&launch_train_with_config(config, trainer).unwrap())
        };
        let right = train(SyncMultiGpuTrainerReplicated::on(devices.clone()).into());
        let found = train(SyncMultiGpuTrainerParameterServer::on(devices).into());
        assert_close(&found, &right, &format!("{name} on {count} devices"));
    }
}

/// The state of the optimizer is written and read whole.
#[test]
fn divided_variables_can_be_read_and_written() {
    let Some(devices) = devices(3) else { return };
    let trained = train(|| Adam::new(0.01).boxed(), SyncMultiGpuTrainerParameterServer::on(devices));
    let session = &trained.session;
    let moments = session.read("fc1/W/adam_m").unwrap();
    assert_eq!(moments.sizes(), [61, 16]);
    assert!(moments.to_f64_vec().iter().all(|x| *x != 0.0));
    let values: Vec<f64> = (0..61 * 16).map(f64::from).collect();
    let written = HostTensor::from_f64(DType::F64, [61, 16], &values).unwrap();
    session.write("fc1/W/adam_m", &written).unwrap();
    assert_eq!(session.read("fc1/W/adam_m").unwrap(), written);
}

/// A checkpoint of one trainer is continued by the other.
#[test]
fn a_run_is_resumed_with_either_trainer() {
    let Some(devices) = devices(2) else { return };
    let adam: MakeOptimizer = || Adam::new(0.01).boxed();
    let whole = launch_train_with_config(
        config(adam).max_epoch(3).no_logdir(),
        SyncMultiGpuTrainerReplicated::on(devices.clone()),
    );
    let dir = tempfile::tempdir().unwrap();
    let part = |epochs: u64, trainer: SingleCostTrainer| {
        let config = config(adam).max_epoch(epochs).logdir(dir.path()).callback(ModelSaver::new());
        launch_train_with_config(config, trainer).unwrap()
    };
    part(1, SyncMultiGpuTrainerParameterServer::on(devices.clone()).into());
    part(2, SyncMultiGpuTrainerReplicated::on(devices.clone()).into());
    let resumed = part(3, SyncMultiGpuTrainerParameterServer::on(devices).into());
    assert_close(&variables(&resumed), &variables(&whole.unwrap()), "three trainers in turn");
}
