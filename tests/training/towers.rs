//! Several towers against one: k towers of batch b are one tower of batch k b.

use std::sync::Arc;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::SingleCostTrainer;

const TOTAL: usize = 24;
const STEPS: u64 = 20;

type MakeOptimizer = Arc<dyn Fn() -> Box<dyn Optimizer>>;

/// A net with dropout and, if asked, synchronised batch normalisation.
struct Net {
    dtype: DType,
    normalised: bool,
    optimizer: MakeOptimizer,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, n| TensorSpec::new(name, self.dtype, [None, Some(n)]);
        vec![spec("x", 5), spec("y", 2)]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let mut x = Linear::new(16).no_bias().apply(t, "fc0", &inputs[0]);
        if self.normalised {
            x = BatchNorm::new().synchronized().apply(t, "bn", &x);
        }
        let x = Dropout::new(0.25).apply(t, "dropout", &x.tanh());
        let out = Linear::new(2).apply(t, "fc1", &x);
        (out - &inputs[1]).square().mean().named("cost") + regularize_cost(t, "fc.*/W", l2_regularizer(1e-3))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

/// Batches of `rows` examples: the same examples in the same order, however many make a batch.
fn batches(dtype: DType, rows: usize) -> FromFn {
    FromFn::new(u64::MAX / 2, move |index| {
        let rng = CounterRng::new(9, "examples");
        let part = |stream: u64, width: usize| {
            let first = index * (rows * width) as u64;
            let values: Vec<f64> =
                (0..(rows * width) as u64).map(|i| rng.normal(stream, first + i)).collect();
            HostTensor::from_f64(dtype, [rows, width], &values)
        };
        Ok(vec![part(0, 5)?, part(1, 2)?])
    })
}

/// All variables after twenty steps.
fn train(
    dtype: DType,
    normalised: bool,
    optimizer: &MakeOptimizer,
    towers: usize,
    trainer: impl Into<SingleCostTrainer>,
) -> Vec<(String, HostTensor)> {
    let model = Net { dtype, normalised, optimizer: optimizer.clone() };
    let config = TrainConfig::new(model, batches(dtype, TOTAL / towers))
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(STEPS)
        .max_epoch(1)
        .no_logdir();
    let trained = launch_train_with_config(config, trainer).unwrap();
    let names: Vec<String> = trained.session.graph().variables().iter().map(|v| v.name.clone()).collect();
    names.into_iter().map(|n| (n.clone(), trained.session.read(&n).unwrap())).collect()
}

/// `|a - b| / |b|` for each variable.
fn assert_close(found: &[(String, HostTensor)], right: &[(String, HostTensor)], at_most: f64, what: &str) {
    assert_eq!(found.len(), right.len(), "{what}");
    for ((name, a), (_, b)) in found.iter().zip(right) {
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
        let difference: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let relative = norm(&difference) / norm(&b).max(1e-30);
        assert!(relative <= at_most, "{what}: {name} differs by {relative}");
    }
}

fn optimizers() -> Vec<(&'static str, MakeOptimizer)> {
    vec![
        ("sgd", Arc::new(|| Sgd::new(0.1).boxed())),
        ("momentum", Arc::new(|| Momentum::new(0.05, 0.9).boxed())),
        ("adam", Arc::new(|| Adam::new(0.01).boxed())),
        ("clipping", Arc::new(|| Sgd::new(0.1).process(GlobalNormClip::new(0.5)).boxed())),
        ("decay", Arc::new(|| AdamW::new(0.01).decay(0.1).boxed())),
        ("accumulation", Arc::new(|| Accumulate::new(Sgd::new(0.1), 4).boxed())),
    ]
}

#[test]
fn k_towers_are_one_with_k_times_the_batch() {
    for (name, optimizer) in optimizers() {
        for normalised in [false, true] {
            for (dtype, at_most) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
                let one = train(dtype, normalised, &optimizer, 1, SimpleTrainer::new());
                for towers in [1, 2, 3, 4, 8] {
                    let trainer = SyncMultiGpuTrainerReplicated::new(towers);
                    let several = train(dtype, normalised, &optimizer, towers, trainer);
                    let what = format!("{name}, {towers} towers, {dtype}, normalised {normalised}");
                    assert_close(&several, &one, at_most, &what);
                }
            }
        }
    }
}

#[test]
fn parameter_server_and_replicated_are_bit_equal() {
    let (_, adam) = optimizers().swap_remove(2);
    for towers in [2, 3] {
        let a = train(DType::F32, true, &adam, towers, SyncMultiGpuTrainerReplicated::new(towers));
        let b = train(DType::F32, true, &adam, towers, SyncMultiGpuTrainerParameterServer::new(towers));
        for ((name, a), (_, b)) in a.iter().zip(&b) {
            assert_eq!(a.as_bytes(), b.as_bytes(), "{name}");
        }
    }
}

#[test]
fn a_trainer_without_devices_is_refused() {
    let (_, sgd) = optimizers().swap_remove(0);
    let model = Net { dtype: DType::F32, normalised: false, optimizer: sgd };
    let config = TrainConfig::new(model, batches(DType::F32, 4)).steps_per_epoch(1).max_epoch(1).no_logdir();
    let e = launch_train_with_config(config, SyncMultiGpuTrainer::new(0)).err().unwrap();
    assert!(e.message().contains("at least one device"), "{e}");
}
