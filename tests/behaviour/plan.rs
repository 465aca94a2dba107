//! The plans of known graphs: kernels, fusion, in-place results and variable updates. The expected
//! texts are in `tests/plans`; a change in them changes the engine's speed and needs a review.
//!
//! Also the size of the arena, compared with the peak of live memory.

use super::models::{self, Model};
use std::collections::HashMap;
use tensorpack::graph::{Graph, TensorSpec, UPDATE_OPS, VariableSpec};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::optim::{Adam, Sgd, minimize};
use tensorpack::runtime::{IntoFetch, Session};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

#[track_caller]
fn assert_plan(got: &str, expected: &str) {
    assert!(got == expected, "the plan is\n\n{got}\nbut was expected to be\n\n{expected}");
}

fn plan(graph: Graph, fetches: &[&dyn IntoFetch], feeds: &[(&str, &HostTensor)]) -> String {
    Session::new(graph.freeze().unwrap()).unwrap().plan_text(fetches, feeds).unwrap()
}

#[test]
fn two_layers_with_adam() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(20)]));
    let label = g.placeholder(&TensorSpec::i32("label", [None]));
    let y = Linear::new(16).relu().apply(&t, "fc0", &x);
    let cost = Linear::new(5).apply(&t, "fc1", &y).sparse_softmax_cross_entropy(&label).mean().named("cost");
    let train = minimize(&cost, &Adam::new(1e-3)).unwrap();
    let x = HostTensor::zeros(DType::F32, [8, 20]).unwrap();
    let label = HostTensor::zeros(DType::I32, [8]).unwrap();
    let text = plan(g, &[&cost, &train], &[("x", &x), ("label", &label)]);
    assert_plan(&text, include_str!("../plans/two_layers_with_adam.txt"));
    let commits: Vec<&str> = text.lines().filter(|l| l.starts_with("commit map")).collect();
    assert_eq!(
        commits.iter().filter(|l| l.matches('[').count() == 4).count(),
        1,
        "one fused update of all four variables"
    );
}

#[test]
fn convolution_normalization_relu_with_sgd() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(8), Some(8), Some(4)]));
    let y = Conv2d::new(4, 3).no_bias().apply(&t, "conv", &x);
    let y = BatchNorm::new().relu().apply(&t, "bn", &y);
    let cost = y.square().mean().named("cost");
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let updates = g.collection_ops(UPDATE_OPS);
    let train = g.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
    let x = HostTensor::zeros(DType::F32, [2, 8, 8, 4]).unwrap();
    let text = plan(g, &[&cost, &train], &[("x", &x)]);
    assert_plan(&text, include_str!("../plans/convolution_normalization_relu_with_sgd.txt"));
}

#[test]
fn elementwise_chain_with_a_residual() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(12)]));
    let w = t.variable(VariableSpec::new("w", [12, 12]));
    let y = x.matmul(&w).relu();
    let z = ((&y * 2.0 + 1.0).tanh() * &x).matmul(&w).exp() + &y;
    let mean = (&z - z.mean_axes(&[-1]).expand_dims(-1)).square().named("centred");
    let x = HostTensor::zeros(DType::F32, [6, 12]).unwrap();
    let text = plan(g, &[&mean], &[("x", &x)]);
    assert_plan(&text, include_str!("../plans/elementwise_chain_with_a_residual.txt"));
}

/// Parses the numbers of the results in a part of the plan.
fn results(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.split('%').skip(1).map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().unwrap()
    })
}

/// Returns the size of a result written as `f32[8, 16]`, rounded up to cache lines.
fn bytes(spec: &str) -> usize {
    let (dtype, sizes) = spec.split_once('[').unwrap();
    let sizes = sizes.split_once(']').unwrap().0.split(", ").filter(|s| !s.is_empty());
    let elements: usize = sizes.map(|s| s.parse::<usize>().unwrap()).product();
    let dtype = DType::ALL.into_iter().find(|d| d.to_string() == dtype).unwrap();
    (elements * dtype.size()).max(1).next_multiple_of(64)
}

/// Computes the peak of live memory from the plan's text: a result lives from the line that writes
/// it to the last line that reads it, in-place results are free, and memory shared by threads lives
/// for one line.
fn peak_live_bytes(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("arena")).collect();
    // For each result, the buffer it uses; for each buffer, its size, first and last line.
    let mut owner: HashMap<u32, u32> = HashMap::new();
    let mut lives: HashMap<u32, (usize, usize, usize)> = HashMap::new();
    // All commits happen together, after the fetches.
    let commits = lines.iter().position(|l| l.starts_with("commit")).unwrap_or(lines.len());
    let mut shared = vec![0; lines.len()];
    for (i, line) in lines.iter().enumerate() {
        let t = i.min(commits);
        let (left, right) = line.split_once(" = ").unwrap_or(("", line));
        for id in results(right.split(" // ").next().unwrap()) {
            lives.get_mut(&owner[&id]).unwrap().2 = t;
        }
        for part in left.split('%').skip(1) {
            // `3 f32[8, 16], ` or `3 f32[8, 16] in place of `; in the latter case the part after it
            // is only the reused buffer.
            let Some((id, spec)) = part.split_once(' ').filter(|(_, spec)| spec.contains('[')) else {
                continue;
            };
            let id: u32 = id.parse().unwrap();
            let reused = spec.ends_with("in place of ").then(|| {
                let at = left.split_once(&format!("%{part}%")).unwrap().1;
                results(&format!("%{at}")).next().unwrap()
            });
            match reused {
                Some(other) => {
                    owner.insert(id, owner[&other]);
                    lives.get_mut(&owner[&other]).unwrap().2 = t;
                }
                None => {
                    owner.insert(id, id);
                    lives.insert(id, (bytes(spec), t, t));
                }
            }
        }
        if let Some((_, rest)) = line.split_once(" sharing ") {
            shared[t] = rest.split(' ').next().unwrap().parse::<usize>().unwrap();
        }
    }
    let alive = |t: usize| {
        let now = lives.values().filter(|(_, first, last)| *first <= t && t <= *last);
        now.map(|(bytes, ..)| bytes).sum::<usize>() + shared[t]
    };
    (0..lines.len()).map(alive).max().unwrap_or(0)
}

fn arena_is_tight(name: &str, model: Model) {
    let [image, label] = model.batch(32, 0);
    let (cost, train) = (model.cost.clone(), model.train.clone());
    let text = plan(model.graph, &[&cost, &train], &[("image", &image), ("label", &label)]);
    let (arena, live) = (number_after(&text, "\narena "), peak_live_bytes(&text));
    assert!(live > 100_000, "{name}: only {live} live bytes in\n{text}");
    assert!(arena >= live, "{name}: {arena} bytes cannot hold {live}");
    assert!(arena as f64 <= 1.15 * live as f64, "{name}: {arena} bytes for a peak of {live} live bytes");
}

fn number_after(text: &str, word: &str) -> usize {
    let rest = text.split_once(word).unwrap().1.trim_start();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_arena_is_close_to_the_peak_of_live_memory() {
    arena_is_tight("mlp", models::mlp());
    arena_is_tight("mnist", models::mnist());
    arena_is_tight("resnet", models::small_resnet());
}
