//! Several towers on several XLA devices: k towers with batch size b train like one tower with
//! batch size k b, on both engines.

use crate::{device, devices};
use tensorpack::dataflow::FromFn;
use tensorpack::graph::{Graph, UPDATE_OPS, VariableSpec};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;
use tensorpack::train::SingleCostTrainer;
use tensorpack_testing::assert_mentions;

const TOTAL: usize = 24;

/// A net with dropout and synchronized batch normalization.
struct Net {
    /// Whether all towers use a variable that the first one updates from its cost.
    follow_the_first: bool,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["x", "y"].map(|name| TensorSpec::new(name, DType::F64, [None, Some(5)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(16).no_bias().apply(t, "fc0", &inputs[0]);
        let x = BatchNorm::new().synchronized().apply(t, "bn", &x);
        let x = Dropout::new(0.25).apply(t, "dropout", &x.tanh());
        let cost = (Linear::new(5).apply(t, "fc1", &x) - &inputs[1]).square().mean().named("cost");
        if !self.follow_the_first {
            return cost;
        }
        let costs = t.variable(VariableSpec::new("costs", []).dtype(DType::F64).non_trainable());
        if t.is_main_training_tower() {
            let update = costs.update(|before| before * 0.5 + cost.stop_gradient());
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
        cost * (1.0 + costs.value().tanh())
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.01).boxed()
    }
}

/// Batches of `rows` examples, from the same sequence of examples for any batch size.
fn batches(rows: usize) -> FromFn {
    FromFn::new(u64::MAX / 2, move |index| {
        let rng = CounterRng::new(9, "examples");
        let part = |stream: u64| {
            let first = index * (rows * 5) as u64;
            let values: Vec<f64> = (0..(rows * 5) as u64).map(|i| rng.normal(stream, first + i)).collect();
            HostTensor::from_f64(DType::F64, [rows, 5], &values)
        };
        Ok(vec![part(0)?, part(1)?])
    })
}

/// Trains for some steps and returns all variables.
fn train(
    net: Net,
    towers: usize,
    device: Device,
    trainer: impl Into<SingleCostTrainer>,
) -> Vec<(String, Vec<f64>)> {
    let config = TrainConfig::new(net, batches(TOTAL / towers))
        .session(SessionOptions { device, ..SessionOptions::default() })
        .steps_per_epoch(12)
        .max_epoch(1)
        .no_logdir();
    let trained = launch_train_with_config(config, trainer).unwrap();
    let names: Vec<String> = trained.session.graph().variables().iter().map(|v| v.name.clone()).collect();
    names.into_iter().map(|n| (n.clone(), trained.session.read(&n).unwrap().to_f64_vec())).collect()
}

fn assert_close(found: &[(String, Vec<f64>)], right: &[(String, Vec<f64>)], what: &str) {
    assert_eq!(found.len(), right.len(), "{what}");
    for ((name, a), (_, b)) in found.iter().zip(right) {
        let norm = b.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-30);
        let off = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / norm;
        assert!(off <= 1e-9, "{what}: {name} differs by {off}");
    }
}

#[test]
fn k_towers_train_like_one_with_k_times_the_batch() {
    let Some(device) = device() else { return };
    let net = || Net { follow_the_first: false };
    let right = train(net(), 1, Device::Cpu(0), SimpleTrainer::new());
    assert_close(&train(net(), 1, device, SimpleTrainer::new()), &right, "one tower");
    for towers in [2, 3, 8] {
        let Some(devices) = devices(towers) else { return };
        // The trainer's devices override the session's.
        let trainer = SyncMultiGpuTrainerReplicated::on(devices);
        assert_close(&train(net(), towers, Device::Cpu(0), trainer), &right, &format!("{towers} towers"));
    }
}

#[test]
fn a_variable_updated_by_the_first_tower_is_the_same_for_all() {
    let Some(devices) = devices(3) else { return };
    let net = || Net { follow_the_first: true };
    let teams = train(net(), 3, Device::Cpu(0), SyncMultiGpuTrainerReplicated::new(3));
    assert!(teams.iter().any(|(name, value)| name == "costs" && value[0] > 0.0));
    let found = train(net(), 3, Device::Cpu(0), SyncMultiGpuTrainerReplicated::on(devices));
    assert_close(&found, &teams, "three towers on either engine");
}

fn config() -> TrainConfig {
    TrainConfig::new(Net { follow_the_first: false }, batches(4)).steps_per_epoch(1).max_epoch(1).no_logdir()
}

#[test]
fn towers_need_contiguous_devices() {
    let Some(device @ Device::Xla { platform, .. }) = device() else { return };
    let name = platform.name();
    let at = |index: usize| Device::Xla { platform, index };
    let on = |devices: Vec<Device>| {
        launch_train_with_config(config(), SyncMultiGpuTrainerReplicated::on(devices)).err().unwrap()
    };
    let e = on(vec![at(0), at(2)]);
    assert_mentions(&e, &["tower 1", &format!("xla:{name}:2")]);
    let e = on(vec![at(0), Device::Cpu(1)]);
    assert_mentions(&e, &["tower 1", "cpu:1"]);
    let there = (0..).find(|&i| open(at(i)).is_err()).unwrap();
    let missing = format!("xla:{name}:{there} does not exist: xla:{name} has {there} devices");
    assert_eq!(open(at(there)).err().unwrap().message(), missing);
    assert_eq!(on((0..=there).map(at).collect()).message(), missing);
    if device == at(0) && name == "cpu" {
        assert_eq!(there, tensorpack::runtime::XLA_CPU_DEVICES);
    }
}

fn open(device: Device) -> Result<Session> {
    Session::with(Graph::new().freeze()?, SessionOptions { device, ..SessionOptions::default() })
}

/// Towers may compute equal values, such as the indices of two axes, in different orders.
#[test]
fn equal_values_may_be_computed_in_any_order() {
    let Some(devices) = devices(2) else { return };
    let costs = |device: Device| {
        let graph = Graph::new();
        let mut costs = Vec::new();
        for index in 0..2 {
            let t = TowerContext::new(&graph, Mode::Training, index, 2);
            let x = graph.placeholder(&TensorSpec::f32(format!("x{index}"), [Some(3)]));
            costs.push(t.build(|t| {
                // Two operations with the same result.
                let (own, like) = match index {
                    0 => (graph.iota(3, DType::F32), x.iota_like(0, DType::F32)),
                    _ => {
                        let like = x.iota_like(0, DType::F32);
                        (graph.iota(3, DType::F32), like)
                    }
                };
                t.all_reduce_sum("cost", &((&x * own).sum() - (&x + like).square().sum()))
            }));
        }
        let session = Session::with(
            graph.freeze().unwrap(),
            SessionOptions { device, full_precision: true, ..SessionOptions::default() },
        );
        let fed = [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]].map(|x| HostTensor::new([3], x.to_vec()).unwrap());
        session.unwrap().run(&[&costs[0], &costs[1]], &[("x0", &fed[0]), ("x1", &fed[1])]).unwrap()
    };
    assert_eq!(costs(devices[0]), costs(Device::Cpu(0)));
}
