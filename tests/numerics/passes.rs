//! The cost of numerically stable formulas, in passes over the logits.

use std::collections::HashSet;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Tensor, TensorSpec};
use tensorpack::runtime::{IntoFetch, Session};
use tensorpack::{DType, HostTensor};

/// Returns the number of kernels in the plan that read or write a `[64, 1000]` tensor, such as
/// `feed0`.
fn passes(build: impl Fn(&Tensor, &Tensor) -> Vec<Tensor>) -> usize {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(64), Some(1000)]));
    let label = graph.placeholder(&TensorSpec::i32("label", [Some(64)]));
    let fetches: Vec<Fetch> = build(&x, &label).iter().map(Fetch::from).collect();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fetches: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
    let x = HostTensor::zeros(DType::F32, [64, 1000]).unwrap();
    let label = HostTensor::zeros(DType::I32, [64]).unwrap();
    let plan = session.plan_text(&fetches, &[("x", &x), ("label", &label)]).unwrap();
    let mut full = HashSet::from(["feed0"]);
    let mut count = 0;
    for line in plan.lines() {
        let Some((made, read)) = line.split_once(" = ") else { continue };
        // `%8 f32[64, 1000], %7 f32[64, 1000]`, possibly followed by `in place of`.
        let words: Vec<&str> = made.split(' ').collect();
        let large =
            words.windows(2).filter(|w| w[0].starts_with('%') && w[1].ends_with("[64,")).map(|w| w[0]);
        let large: Vec<&str> = large.collect();
        let operands = read.split_once('(').and_then(|(_, r)| r.split_once(')')).map_or("", |(r, _)| r);
        if !large.is_empty() || operands.split(", ").any(|o| full.contains(o)) {
            // A column `[64, 1]` is no pass.
            let column = made.contains("[64, 1]") && !operands.split(", ").any(|o| full.contains(o));
            count += usize::from(!column);
        }
        if made.contains("[64, 1000]") {
            full.extend(large);
        }
    }
    assert!(count > 0, "{plan}");
    count
}

fn gradient(cost: &Tensor, x: &Tensor) -> Tensor {
    gradients(cost, &[x]).unwrap().remove(0).unwrap()
}

/// Each count is at most that of the plan before the formulas were made stable.
#[test]
fn stable_formulas_take_no_more_passes_over_the_logits() {
    assert_eq!(passes(|x, _| vec![x.softmax()]), 3, "softmax");
    assert_eq!(passes(|x, _| vec![gradient(&(x.softmax() * x).sum(), x)]), 5, "softmax and its gradient");
    let loss = |x: &Tensor, l: &Tensor| x.sparse_softmax_cross_entropy(l).mean();
    assert_eq!(passes(|x, l| vec![loss(x, l)]), 2, "sparse cross entropy");
    assert_eq!(passes(|x, l| vec![loss(x, l), gradient(&loss(x, l), x)]), 4, "its gradient");
    let loss = |x: &Tensor| x.softmax_cross_entropy(&(x * 0.0 + 0.1)).mean();
    assert_eq!(passes(|x, _| vec![loss(x), gradient(&loss(x), x)]), 5, "cross entropy and its gradient");
}
