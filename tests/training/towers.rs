//! Several towers against one: k towers with batch size b train like one tower with batch size k *
//! b.

use std::sync::Arc;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::SingleCostTrainer;

const TOTAL: usize = 24;
const STEPS: u64 = 20;

type MakeOptimizer = Arc<dyn Fn() -> Box<dyn Optimizer>>;

/// The normalization of the first layer.
#[derive(Clone, Copy, Debug)]
enum Normalized {
    Not,
    /// Over the batches of all towers.
    Together,
    /// Over each tower's own batch.
    Alone,
    /// In groups of this many examples.
    Ghost(usize),
}

/// A net with dropout, weight decay, and optional batch norm.
struct Net {
    dtype: DType,
    normalized: Normalized,
    optimizer: MakeOptimizer,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, n| TensorSpec::new(name, self.dtype, [None, Some(n)]);
        vec![spec("x", 5), spec("y", 2)]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(16).no_bias().apply(t, "fc0", &inputs[0]);
        let norm = match self.normalized {
            Normalized::Not => None,
            Normalized::Together => Some(BatchNorm::new().synchronized()),
            Normalized::Alone => Some(BatchNorm::new()),
            Normalized::Ghost(examples) => Some(BatchNorm::new().virtual_batch_size(examples)),
        };
        let x = norm.map_or(x.clone(), |norm| norm.apply(t, "bn", &x));
        let x = Dropout::new(0.25).apply(t, "dropout", &x.tanh());
        let out = Linear::new(2).apply(t, "fc1", &x);
        (out - &inputs[1]).square().mean().named("cost") + regularize_cost(t, "fc.*/W", l2_regularizer(1e-3))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

/// Batches of `rows` examples: the same examples in the same order for any batch size.
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

/// Returns all variables after twenty steps.
fn train(
    dtype: DType,
    normalized: Normalized,
    optimizer: &MakeOptimizer,
    towers: usize,
    trainer: impl Into<SingleCostTrainer>,
) -> Vec<(String, HostTensor)> {
    let model = Net { dtype, normalized, optimizer: optimizer.clone() };
    let config = TrainConfig::new(model, batches(dtype, TOTAL / towers))
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(STEPS)
        .max_epoch(1)
        .no_logdir();
    values(&launch_train_with_config(config, trainer).unwrap().session)
}

/// Returns all variables by name.
fn values(session: &Session) -> Vec<(String, HostTensor)> {
    let names = session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|n| (n.clone(), session.read(&n).unwrap())).collect()
}

/// `|a - b| / |b|`.
pub(crate) fn distance(a: &HostTensor, b: &HostTensor) -> f64 {
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let difference: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    norm(&difference) / norm(&b).max(1e-30)
}

/// Checks that the [`distance`] of each variable is small.
pub(crate) fn assert_close(
    found: &[(String, HostTensor)],
    right: &[(String, HostTensor)],
    at_most: f64,
    what: &str,
) {
    assert_eq!(found.len(), right.len(), "{what}");
    for ((name, a), (other, b)) in found.iter().zip(right) {
        let relative = distance(a, b);
        assert_eq!(name, other, "{what}");
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

const TYPES: [(DType, f64); 2] = [(DType::F64, 1e-9), (DType::F32, 1e-4)];
const TOWERS: [usize; 5] = [1, 2, 3, 4, 8];

#[test]
fn k_towers_train_like_one_with_k_times_the_batch() {
    for (name, optimizer) in optimizers() {
        for normalized in [Normalized::Not, Normalized::Together] {
            for (dtype, at_most) in TYPES {
                let one = train(dtype, normalized, &optimizer, 1, SimpleTrainer::new());
                for towers in TOWERS {
                    let trainer = SyncMultiGpuTrainerReplicated::new(towers);
                    let several = train(dtype, normalized, &optimizer, towers, trainer);
                    let what = format!("{name}, {towers} towers, {dtype}, normalized {normalized:?}");
                    assert_close(&several, &one, at_most, &what);
                }
            }
        }
    }
}

/// Each tower normalizes its own batch, like one tower with groups of that size. The running
/// statistics are among the compared variables.
#[test]
fn per_tower_batch_norm_is_ghost_batch_norm() {
    for (name, optimizer) in optimizers() {
        for (dtype, at_most) in TYPES {
            for towers in TOWERS {
                let ghost = Normalized::Ghost(TOTAL / towers);
                let one = train(dtype, ghost, &optimizer, 1, SimpleTrainer::new());
                let trainer = SyncMultiGpuTrainerReplicated::new(towers);
                let several = train(dtype, Normalized::Alone, &optimizer, towers, trainer);
                assert!(one.iter().any(|(name, _)| name == "bn/variance/EMA"));
                assert_close(&several, &one, at_most, &format!("{name}, {towers} towers, {dtype}"));
            }
        }
    }
}

#[test]
fn parameter_server_and_replicated_are_bit_identical() {
    for (name, optimizer) in optimizers() {
        for normalized in [Normalized::Alone, Normalized::Together] {
            for towers in [2, 3] {
                let replicated = SyncMultiGpuTrainerReplicated::new(towers);
                let a = train(DType::F32, normalized, &optimizer, towers, replicated);
                let server = SyncMultiGpuTrainerParameterServer::new(towers);
                let b = train(DType::F32, normalized, &optimizer, towers, server);
                for ((variable, a), (_, b)) in a.iter().zip(&b) {
                    assert_eq!(a.as_bytes(), b.as_bytes(), "{name}, {normalized:?}: {variable}");
                }
            }
        }
    }
}

fn small() -> TrainConfig {
    let (_, optimizer) = optimizers().swap_remove(0);
    let model = Net { dtype: DType::F32, normalized: Normalized::Together, optimizer };
    TrainConfig::new(model, batches(DType::F32, 4)).steps_per_epoch(2).max_epoch(1).no_logdir()
}

#[test]
fn a_trainer_without_devices_is_an_error() {
    let e = launch_train_with_config(small(), SyncMultiGpuTrainer::new(0)).err().unwrap();
    assert!(e.message().contains("at least one device"), "{e}");
}

#[test]
fn invalid_device_lists_are_errors() {
    for (devices, why) in [
        ([Device::Cpu(0), Device::Null], "tower 1 cannot run on null"),
        ([Device::Cpu(1), Device::Cpu(1)], "cpu:1 is listed twice"),
    ] {
        let e = launch_train_with_config(small(), SyncMultiGpuTrainer::on(devices)).err().unwrap();
        assert!(e.message().contains(why), "{e}");
    }
}

/// The same steps up to f32 rounding, with synchronized statistics and dropout.
#[test]
fn towers_on_the_reference_device_train_as_on_the_cpu() {
    let train = |devices: [Device; 2]| {
        let session = launch_train_with_config(small(), SyncMultiGpuTrainer::on(devices)).unwrap().session;
        let names = session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|name| (name.clone(), session.read(&name).unwrap().to_f64_vec())).collect::<Vec<_>>()
    };
    let (found, right) = (train([Device::Cpu(0), Device::Cpu(1)]), train([Device::Reference; 2]));
    assert_eq!(found.len(), right.len());
    for ((name, found), (_, right)) in found.iter().zip(&right) {
        for (a, b) in found.iter().zip(right) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{name}: {a}, the reference has {b}");
        }
    }
}

/// Everything except the computation.
#[test]
fn towers_on_the_null_device_compute_nothing() {
    let trained = launch_train_with_config(small(), SyncMultiGpuTrainer::on([Device::Null; 3])).unwrap();
    assert_eq!(trained.tower.unwrap().towers().training().len(), 3);
    assert_eq!(trained.session.run_index().unwrap(), 2);
    assert!(format!("{:?}", trained.session).contains("null"));
}

#[test]
fn from_config_creates_the_trainer() {
    let trained = SyncMultiGpuTrainer::from_config(small(), 3).train().unwrap();
    assert_eq!(trained.tower.unwrap().towers().training().len(), 3);
}

/// A linear model whose weights are bf16.
struct Bf16Weights;

impl ModelDesc for Bf16Weights {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(5)]), TensorSpec::f32("y", [None, Some(2)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", [5, 2]).dtype(DType::Bf16));
        let out = inputs[0].cast(DType::Bf16).matmul(w.value()).cast(DType::F32);
        (out - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

#[test]
fn bf16_variables_train_on_several_towers() {
    let train = |towers: usize, trainer: SingleCostTrainer| {
        let config = TrainConfig::new(Bf16Weights, batches(DType::F32, TOTAL / towers));
        let config = config.steps_per_epoch(STEPS).max_epoch(1).no_logdir();
        values(&launch_train_with_config(config, trainer).unwrap().session)
    };
    let one = train(1, SimpleTrainer::new().into());
    assert_eq!(one.iter().find(|(name, _)| name == "w").unwrap().1.dtype(), DType::Bf16);
    for towers in [2, 3] {
        let several = train(towers, SyncMultiGpuTrainer::new(towers).into());
        assert_close(&several, &one, 0.02, &format!("{towers} towers"));
    }
}
