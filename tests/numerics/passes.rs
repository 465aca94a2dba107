//! What the stable forms cost: passes over the logits.

use tensorpack::HostTensor;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Tensor, TensorSpec};
use tensorpack::runtime::{IntoFetch, Session};

/// The kernels of a plan for `[64, 1000]` logits that go over all of them, by the text of the plan.
fn passes(build: impl Fn(&Tensor, &Tensor) -> Vec<Tensor>) -> String {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(64), Some(1000)]));
    let label = graph.placeholder(&TensorSpec::i32("label", [Some(64)]));
    let fetched = build(&x, &label);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fetches: Vec<Fetch> = fetched.iter().map(Fetch::from).collect();
    let fetches: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
    let x = HostTensor::zeros(tensorpack::DType::F32, [64, 1000]).unwrap();
    let label = HostTensor::zeros(tensorpack::DType::I32, [64]).unwrap();
    session.plan_text(&fetches, &[("x", &x), ("label", &label)]).unwrap()
}

#[test]
fn plans() {
    println!("SOFTMAX\n{}", passes(|x, _| vec![x.softmax()]));
    println!(
        "SOFTMAX GRAD\n{}",
        passes(|x, _| {
            let y = x.softmax();
            let dx = gradients(&(&y * x).sum(), &[x]).unwrap().remove(0).unwrap();
            vec![dx]
        })
    );
    println!("CE\n{}", passes(|x, l| vec![x.sparse_softmax_cross_entropy(l).mean()]));
    println!(
        "CE GRAD\n{}",
        passes(|x, l| {
            let y = x.sparse_softmax_cross_entropy(l).mean();
            let dx = gradients(&y, &[x]).unwrap().remove(0).unwrap();
            vec![y, dx]
        })
    );
    println!(
        "DENSE CE GRAD\n{}",
        passes(|x, _| {
            let y = x.softmax_cross_entropy(&(x * 0.0 + 0.1)).mean();
            let dx = gradients(&y, &[x]).unwrap().remove(0).unwrap();
            vec![y, dx]
        })
    );
}
