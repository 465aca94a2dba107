//! Towers with different batches in one step: a smaller last batch, images of several sizes.

use crate::towers::{assert_close, distance};
use tensorpack::ErrorKind;
use tensorpack::dataflow::{DataFlow, FromFn, FromList};
use tensorpack::optim::{Optimizer, minimize};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::SingleCostTrainer;

const STEPS: u64 = 6;
const RATE: f64 = 0.1;

/// A regression on images of any size with global average pooling and optional synchronized batch
/// norm.
struct Pooled {
    synchronized: bool,
}

impl ModelDesc for Pooled {
    fn inputs(&self) -> Vec<TensorSpec> {
        let any = |name: &str, sizes: [Option<usize>; 4]| TensorSpec::new(name, DType::F64, sizes);
        vec![
            any("image", [None, None, None, Some(2)]),
            TensorSpec::new("target", DType::F64, [None, Some(1)]),
        ]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let mut x = Conv2d::new(4, 3).no_bias().apply(t, "conv", &inputs[0]);
        if self.synchronized {
            x = BatchNorm::new().synchronized().apply(t, "bn", &x);
        }
        let out = Linear::new(1).apply(t, "fc", &x.tanh().global_average_pool());
        (out - &inputs[1]).square().mean() + regularize_cost(t, ".*/W", l2_regularizer(1e-2))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(RATE, 0.9).boxed()
    }
}

/// Returns batch number `index`: `rows` square images of `side` pixels and their targets.
fn images(index: u64, rows: usize, side: usize) -> Vec<HostTensor> {
    let rng = CounterRng::new(4, "images");
    let draw = |stream: u64, n: usize| {
        (0..n as u64).map(|i| rng.normal(stream, index * 10_000 + i)).collect::<Vec<f64>>()
    };
    let image = HostTensor::new([rows, side, side, 2], draw(0, rows * side * side * 2)).unwrap();
    vec![image, HostTensor::new([rows, 1], draw(1, rows)).unwrap()]
}

fn values(session: &Session) -> Vec<(String, HostTensor)> {
    let names = session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|n| (n.clone(), session.read(&n).unwrap())).collect()
}

fn options() -> SessionOptions {
    SessionOptions { threads: Some(1), ..SessionOptions::default() }
}

fn train(
    model: Pooled,
    data: impl DataFlow + 'static,
    trainer: impl Into<SingleCostTrainer>,
) -> Vec<(String, HostTensor)> {
    let config = TrainConfig::new(model, data).session(options()).steps_per_epoch(STEPS).max_epoch(1);
    values(&launch_train_with_config(config.no_logdir(), trainer).unwrap().session)
}

/// Trains without a trainer: one tower applies the model to two batches and minimizes the weighted
/// sum of both costs.
fn train_manually(
    batches: &[Vec<HostTensor>],
    share: impl Fn(usize, usize) -> f64,
) -> Vec<(String, HostTensor)> {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let model = Pooled { synchronized: false };
    let input = |spec: TensorSpec, i: usize| {
        graph.placeholder(&TensorSpec { name: format!("{}{i}", spec.name), ..spec })
    };
    let [first, second] = [0, 1].map(|i| model.inputs().into_iter().map(|s| input(s, i)).collect::<Vec<_>>());
    let shares = [0, 1].map(|i| graph.placeholder(&TensorSpec::new(format!("share{i}"), DType::F64, [])));
    let first = model.build_graph(t, &first);
    let second = t.reuse(|t| t.name_scope("again", |t| model.build_graph(t, &second)));
    let cost = first * &shares[0] + second * &shares[1];
    let step = minimize(&cost, &*model.optimizer(t)).unwrap();
    let session = Session::with(graph.freeze().unwrap(), options()).unwrap();
    for pair in batches.chunks(2) {
        let rows = [0, 1].map(|i| pair[i][1].sizes()[0]);
        let shares = rows.map(|n| HostTensor::scalar(share(n, rows[0] + rows[1])));
        let feeds = [
            ("image0", &pair[0][0]),
            ("target0", &pair[0][1]),
            ("image1", &pair[1][0]),
            ("target1", &pair[1][1]),
            ("share0", &shares[0]),
            ("share1", &shares[1]),
        ];
        session.run(&[&step], &feeds).unwrap();
    }
    values(&session)
}

/// Batches with different numbers of images of different sizes.
fn mixed() -> Vec<Vec<HostTensor>> {
    let rows_and_sides = [(4, 6), (3, 6), (5, 8), (1, 4), (2, 7), (2, 5)];
    (0..2 * STEPS)
        .map(|i| rows_and_sides[i as usize % rows_and_sides.len()])
        .zip(0..)
        .map(|((n, side), i)| images(i, n, side))
        .collect()
}

#[test]
fn equal_weights_average_the_towers_means() {
    let found = train(Pooled { synchronized: false }, FromList::new(mixed()), SyncMultiGpuTrainer::new(2));
    assert_close(&found, &train_manually(&mixed(), |_, _| 0.5), 1e-12, "two towers");
}

#[test]
fn weighted_by_batch_averages_over_all_examples() {
    let trainer = SyncMultiGpuTrainer::new(2).weighted_by_batch();
    let found = train(Pooled { synchronized: false }, FromList::new(mixed()), trainer);
    let share = |own: usize, all: usize| own as f64 / all as f64;
    assert_close(&found, &train_manually(&mixed(), share), 1e-12, "two towers");
}

/// Returns one of ten examples.
fn example(i: u64) -> Vec<HostTensor> {
    images(i % 10, 1, 6)
}

fn examples() -> impl DataFlow {
    let flat = |t: &HostTensor| HostTensor::new(t.sizes()[1..].to_vec(), t.to_f64_vec());
    FromFn::new(10, move |i| example(i).iter().map(flat).collect())
}

/// The last batch of an epoch is smaller, and the other tower's batch comes from the next epoch.
/// One tower that trains on both batches at once gets the same result. Synchronized statistics and
/// their gradients also cover all examples.
#[test]
fn weighted_ragged_batches_train_like_one_large_batch() {
    let mut taken = 0;
    let together = [8u64, 6, 6].iter().cycle().take(STEPS as usize).map(|&rows| {
        let parts: Vec<_> = (taken..taken + rows).map(example).collect();
        taken += rows;
        [0, 1].map(|k| {
            let all: Vec<f64> = parts.iter().flat_map(|p| p[k].to_f64_vec()).collect();
            let sizes = [&[rows as usize], &parts[0][k].sizes()[1..]].concat();
            HostTensor::new(sizes, all).unwrap()
        })
    });
    let together = FromList::new(together.map(Vec::from).collect());
    let one = train(Pooled { synchronized: true }, together, SimpleTrainer::new());
    let ragged = || examples().batch(4).keep_remainder();
    let weighted = SyncMultiGpuTrainer::new(2).weighted_by_batch();
    let found = train(Pooled { synchronized: true }, ragged(), weighted);
    assert_close(&found, &one, 1e-9, "weighted");
    // The mean of means differs, so the weighting matters.
    let unweighted = train(Pooled { synchronized: true }, ragged(), SyncMultiGpuTrainer::new(2));
    assert!(distance(&unweighted[0].1, &one[0].1) > 1e-4);
}

/// A model whose cost is a sum, which is 0 without examples.
struct Summed;

impl ModelDesc for Summed {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::new("x", DType::F64, [None, Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Linear::new(2).apply(t, "fc", &inputs[0]).square().sum() * 0.01
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(RATE).boxed()
    }
}

fn train_summed(
    batches: Vec<Vec<HostTensor>>,
    trainer: impl Into<SingleCostTrainer>,
) -> Vec<(String, HostTensor)> {
    let config = TrainConfig::new(Summed, FromList::new(batches)).steps_per_epoch(STEPS).max_epoch(1);
    values(&launch_train_with_config(config.no_logdir(), trainer).unwrap().session)
}

fn rows(n: usize) -> Vec<HostTensor> {
    vec![HostTensor::new([n, 3], (0..3 * n).map(|i| (i as f64).sin()).collect()).unwrap()]
}

/// A tower without examples has weight 0: the step is that of the other tower alone.
#[test]
fn weighted_by_batch_ignores_a_tower_without_examples() {
    let weighted = || SyncMultiGpuTrainer::new(2).weighted_by_batch();
    let one = train_summed(vec![rows(4)], SimpleTrainer::new());
    for pair in [vec![rows(4), rows(0)], vec![rows(0), rows(4)]] {
        assert_close(&train_summed(pair, weighted()), &one, 1e-12, "an empty batch in every step");
    }
    // Without any example there is nothing to learn, on one tower as on two.
    let unchanged = train_summed(vec![rows(0)], SimpleTrainer::new());
    assert!(distance(&unchanged[0].1, &one[0].1) > 1e-4);
    assert_close(&train_summed(vec![rows(0), rows(0)], weighted()), &unchanged, 0.0, "no examples");
}

/// The mean over no examples is undefined, whatever its weight.
#[test]
fn weighted_by_batch_cannot_define_the_mean_of_an_empty_batch() {
    let data = FromList::new(vec![images(0, 3, 6), images(0, 0, 6)]);
    let config = TrainConfig::new(Pooled { synchronized: false }, data).steps_per_epoch(1).max_epoch(1);
    let trainer = SyncMultiGpuTrainer::new(2).weighted_by_batch();
    let e = launch_train_with_config(config.no_logdir(), trainer).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
    assert!(e.message().contains("tower1/Mean"), "{e}");
    assert!(e.site().unwrap().file.ends_with("uneven_batches.rs"), "{e}");
}

/// A model whose input has no batch dimension.
struct NoBatch;

impl ModelDesc for NoBatch {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        (t.variable(VariableSpec::new("w", [])).value() * &inputs[0]).square()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(RATE).boxed()
    }
}

#[test]
fn weighted_by_batch_needs_a_batch_dimension() {
    let data = FromList::new(vec![vec![HostTensor::scalar(1.0f32)]]);
    let config = TrainConfig::new(NoBatch, data).max_epoch(1).no_logdir();
    let trainer = SyncMultiGpuTrainerReplicated::new(2).weighted_by_batch();
    let e = launch_train_with_config(config, trainer).err().unwrap();
    assert!(e.message().contains("batch dimension"), "{e}");
}
