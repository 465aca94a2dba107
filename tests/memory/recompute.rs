//! Recompute blocks: the same bits with less memory.

use super::{arena_bytes, devices, random, xla_device};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;
use tensorpack::runtime::Session;
use tensorpack::tower::Mode;

/// How a part of a net is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    Scope,
    Recompute,
}

impl Part {
    fn build<R>(self, t: &TowerContext, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        match self {
            Part::Scope => t.scope(name, build),
            Part::Recompute => t.recompute(name, build),
        }
    }
}

/// Sixteen layers in blocks of four.
pub(super) fn deep_net(t: &TowerContext, x: &Tensor, part: Part) -> Tensor {
    (0..4).fold(x.clone(), |x, block| {
        part.build(t, &format!("block{block}"), |t| {
            (0..4).fold(x, |x, i| Linear::new(32).apply(t, &format!("fc{i}"), &x).tanh())
        })
    })
}

fn plan_of(net: impl Fn(&TowerContext, &Tensor) -> Tensor) -> String {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32)]));
    let cost = net(&t, &x).square().mean();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    session.plan_text(&[&cost, &train], &[("x", &random("x", &[2048, 32]))]).unwrap()
}

/// Without blocks, 16 results of 256 KiB are kept; with them 4, and those of one block.
#[test]
fn blocks_reduce_the_planned_peak_of_a_deep_net() {
    let [stored, recomputed] =
        [Part::Scope, Part::Recompute].map(|part| arena_bytes(&plan_of(|t, x| deep_net(t, x, part))));
    assert!(stored > 16 * (256 << 10), "{stored} bytes");
    assert!(recomputed * 10 < stored * 7, "{recomputed} of {stored} bytes");
}

/// An inner block is computed again from what the outer block computed again, so fewer results are
/// alive at once.
#[test]
fn nested_blocks_reduce_the_peak_further() {
    let nested = |inner: Part| {
        let plan = plan_of(|t, x| {
            t.recompute("outer", |t| {
                (0..6).fold(x.clone(), |x, block| {
                    inner.build(t, &format!("inner{block}"), |t| {
                        (0..6).fold(x, |x, i| Linear::new(32).apply(t, &format!("fc{i}"), &x).tanh())
                    })
                })
            })
        });
        arena_bytes(&plan)
    };
    let [flat, nested] = [Part::Scope, Part::Recompute].map(nested);
    assert!(nested * 10 < flat * 5, "{nested} of {flat} bytes");
}

/// A net with convolutions, batch norm, dropout, a max pooling, and a block inside a block.
fn convolutional(t: &TowerContext, x: &Tensor, part: Part) -> Tensor {
    let x = part.build(t, "block0", |t| {
        let x = Conv2d::new(8, 3).no_bias().apply(t, "conv", x);
        let x = BatchNorm::new().apply(t, "bn", &x).relu();
        part.build(t, "inner", |t| {
            let y = Conv2d::new(8, 3).relu().apply(t, "conv", &x);
            Dropout::new(0.3).apply(t, "dropout", &y) + &x
        })
    });
    let x = part.build(t, "block1", |t| {
        let y = BatchNorm::new().apply(t, "bn", &Conv2d::new(8, 3).apply(t, "conv", &x));
        (y + &x).gelu().max_pool(2)
    });
    Linear::new(3).apply(t, "out", &x)
}

/// Trains four steps on one tower for each input and returns the costs and all variables.
fn trained(device: &Device, towers: usize, part: Part) -> Vec<HostTensor> {
    let graph = Graph::new();
    let mut costs = Vec::new();
    let mut steps = Vec::new();
    for i in 0..towers {
        let t = TowerContext::new(&graph, Mode::Training, i, towers);
        let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), [None, Some(8), Some(8), Some(3)]));
        let cost = t.build(|t| convolutional(t, &x, part).square().mean());
        let variables: Vec<Variable> = graph
            .collection(tensorpack::graph::TRAINABLE_VARIABLES)
            .variables
            .iter()
            .map(|&v| graph.variable_handle(v))
            .collect();
        let values: Vec<&Tensor> = variables.iter().map(Variable::value).collect();
        let found = gradients(&cost, &values).unwrap();
        let averaged: Vec<Gradient> = t.build(|t| {
            let mean = |(v, g): (Variable, Option<Tensor>)| {
                let name = format!("average/{}", v.name());
                Gradient::new(v, t.all_reduce_mean(&name, &g.expect("a gradient")))
            };
            variables.into_iter().zip(found).map(mean).collect()
        });
        costs.push(cost);
        if i == 0 {
            steps.push(apply_gradients(&Adam::new(0.01), &graph, &averaged).unwrap());
        }
    }
    steps.extend(graph.collection_ops(UPDATE_OPS));
    let step = graph.group(&steps.iter().collect::<Vec<_>>());
    let options = SessionOptions { device: *device, seed: 5, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let inputs: Vec<(String, HostTensor)> =
        (0..towers).map(|i| (format!("x{i}"), random(&format!("x{i}"), &[4, 8, 8, 3]))).collect();
    let feeds: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, x)| (name.as_str(), x)).collect();
    let mut found = Vec::new();
    for _ in 0..4 {
        let mut fetches: Vec<&dyn tensorpack::runtime::IntoFetch> = costs.iter().map(|c| c as _).collect();
        fetches.push(&step);
        found.extend(session.run(&fetches, &feeds).unwrap());
    }
    let names: Vec<String> = session.graph().variables().iter().map(|v| v.name.clone()).collect();
    found.extend(names.iter().map(|name| session.read(name).unwrap()));
    found
}

fn assert_same_bits(found: &[HostTensor], expected: &[HostTensor], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!((a.sizes(), a.as_bytes()), (b.sizes(), b.as_bytes()), "{what}: value {i}");
    }
}

/// Dropout draws the same numbers again, and running statistics are updated once.
#[test]
fn training_has_the_same_bits_with_and_without_blocks() {
    for device in devices() {
        for towers in [1, 2] {
            if towers > 1 && device != Device::default() {
                continue;
            }
            let [stored, recomputed] =
                [Part::Scope, Part::Recompute].map(|part| trained(&device, towers, part));
            assert_same_bits(&recomputed, &stored, &format!("{device}, {towers} towers"));
        }
    }
}

/// A fork computes gradients on a snapshot of the variables.
#[test]
fn forks_have_the_same_bits_with_and_without_blocks() {
    let trained = |part: Part| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(8), Some(8), Some(3)]));
        let cost = convolutional(&t, &x, part).square().mean();
        let step = minimize(&cost, &Adam::new(0.01)).unwrap();
        let steps: Vec<Op> = graph.collection_ops(UPDATE_OPS).into_iter().chain([step]).collect();
        let step = graph.group(&steps.iter().collect::<Vec<_>>());
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let (fork, x) = (session.fork(0, 1).unwrap(), random("x", &[4, 8, 8, 3]));
        let mut found = Vec::new();
        for _ in 0..3 {
            found.extend(fork.run(&[&cost, &step], &[("x", &x)]).unwrap());
        }
        found.extend(session.graph().variables().iter().map(|v| session.read(&v.name).unwrap()));
        found
    };
    assert_same_bits(&trained(Part::Recompute), &trained(Part::Scope), "a fork");
}

/// A gradient penalty differentiates the gradient of a block.
#[test]
fn second_derivatives_have_the_same_bits() {
    for device in devices() {
        let penalty = |part: Part| {
            let graph = Graph::new();
            let t = TowerContext::training(&graph);
            let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32)]));
            let y = deep_net(&t, &x, part).sum();
            let cost = (y.gradient(&x).square().sum() - 1.0).square() + &y;
            let w =
                graph.variable_handle(graph.collection(tensorpack::graph::TRAINABLE_VARIABLES).variables[0]);
            let gradient = cost.gradient(w.value());
            let options = SessionOptions { device, ..SessionOptions::default() };
            let session = Session::with(graph.freeze().unwrap(), options).unwrap();
            session.run(&[&cost, &gradient], &[("x", &random("x", &[8, 32]))]).unwrap()
        };
        assert_same_bits(&penalty(Part::Recompute), &penalty(Part::Scope), &device.to_string());
    }
}

/// The copies of random operations draw from the same stream, and no copy is made without a
/// gradient.
#[test]
fn plans_compute_the_block_twice_only_for_gradients() {
    let count = |gradient: bool| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32)]));
        let y = t.recompute("block", |t| Linear::new(32).apply(t, "fc", &x.dropout(0.5)).tanh());
        let cost = y.square().sum();
        let fetch = if gradient { cost.gradient(&x) } else { cost };
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let plan = session.plan_text(&[&fetch], &[("x", &random("x", &[8, 32]))]).unwrap();
        plan.lines().filter(|l| l.contains("random")).count()
    };
    assert_eq!([count(false), count(true)], [1, 2]);
}

/// A device with memory of its own takes what was planned. Copies for the search for the fastest matrix
/// products are smaller than the results of a step.
#[test]
fn devices_take_the_planned_bytes() {
    let Some(device) = xla_device() else { return };
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32)]));
    let cost = deep_net(&t, &x, Part::Scope).square().mean();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let memory = || session.device_memory().unwrap();
    let Device::Xla { platform, .. } = device else { unreachable!("it is an XLA device") };
    assert_eq!(memory().len(), usize::from(platform.name() != "cpu"));
    let Some(before) = memory().first().copied() else { return };
    let examples = 1 << 20;
    let sizes = [examples, 32];
    let planned = session.planned_bytes(&[&cost, &train], &[("x", DType::F32, &sizes)]).unwrap();
    let fed = random("x", &sizes);
    for _ in 0..3 {
        session.run(&[&cost, &train], &[("x", &fed)]).unwrap();
    }
    let variables = before.in_use;
    let measured = (memory()[0].peak - variables) as f64;
    let ratio = measured / planned as f64;
    assert!((0.98..1.02).contains(&ratio), "{planned} bytes planned, {measured} measured");
}

/// On accelerators the compiler's plan falls as well. XLA's compiler for CPUs removes barriers before
/// it orders operations, so there is only a second forward pass.
#[test]
fn blocks_reduce_the_planned_peak_on_accelerators() {
    let Some(device @ Device::Xla { platform, .. }) = xla_device() else { return };
    let planned = |part: Part| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32)]));
        let cost = deep_net(&t, &x, part).square().mean();
        let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        session.planned_bytes(&[&cost, &train], &[("x", DType::F32, &[1 << 16, 32])]).unwrap()
    };
    let [stored, recomputed] = [Part::Scope, Part::Recompute].map(planned);
    if platform.name() == "cpu" {
        assert_ne!(recomputed, stored, "the second forward pass is not merged with the first");
        return;
    }
    assert!(recomputed * 10 < stored * 7, "{recomputed} of {stored} bytes on {device}");
}
