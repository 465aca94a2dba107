//! `cond`: gradients of what is not chosen, and errors.

use tensorpack::control::cond;
use tensorpack::prelude::*;

fn values(found: &[HostTensor]) -> Vec<f64> {
    found.iter().map(|t| t.to_scalar().unwrap()).collect()
}

/// The logarithm of 0 and the root of a negative number have no finite derivatives.
#[test]
fn what_is_not_chosen_has_no_effect_on_gradients() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    let open = x.greater(1.0);
    let chosen = cond(&open, &[&x], |x| vec![(&x[0] - 1.0).sqrt()], |x| vec![(2.0 - &x[0]).log()]).remove(0);
    let slope = gradients(&chosen, &[&x]).unwrap().remove(0).unwrap();
    let curve = gradients(&slope, &[&x]).unwrap().remove(0).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let run =
        |x: f32| values(&session.run(&[&chosen, &slope, &curve], &[("x", &HostTensor::scalar(x))]).unwrap());
    assert_eq!(run(2.0), [1.0, 0.5, -0.25]);
    assert_eq!(run(5.0), [2.0, 0.25, -0.03125]);
    assert_eq!(run(1.0), [0.0, -1.0, -1.0]);
    assert_eq!(run(-2.0)[1..], [-0.25, -0.0625]);
}

/// Branches may use nothing, return nothing, and differ in what they read.
#[test]
fn branches_without_inputs_and_results() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let any = x.sum().greater(0.0);
    assert!(cond(&any, &[], |_| Vec::new(), |_| Vec::new()).is_empty());
    let same = cond(&any, &[&x, &x], |x| vec![x[0].clone()], |x| vec![x[1].clone()]).remove(0);
    let slope = gradients(&same.sum(), &[&x]).unwrap().remove(0).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for len in [0, 1, 3] {
        let x = HostTensor::new([len], vec![2.0f32; len]).unwrap();
        let found = session.run(&[&same, &slope], &[("x", &x)]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), vec![2.0; len]);
        assert_eq!(found[1].as_slice::<f32>().unwrap(), vec![1.0; len]);
    }
}

#[test]
fn branches_compute_in_the_precision_of_the_graph() {
    let graph = Graph::new();
    graph.set_precision(Precision::Bf16);
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(2)]));
    let result = TowerContext::training(&graph).build(|_| {
        let any = x.sum().greater(0.0);
        cond(&any, &[&x], |x| vec![x[0].matmul(&x[0])], |x| vec![x[0].clone()]).remove(0)
    });
    assert_eq!(result.dtype(), DType::F32);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    // 1 + 2^-10 is 1 in bf16.
    let x = HostTensor::new([2, 2], vec![1.0f32 + 2f32.powi(-10), 0.0, 0.0, 1.0]).unwrap();
    let found = session.run(&[&result], &[("x", &x)]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.0, 0.0, 0.0, 1.0]);
}

/// Names are those of the scope around `cond`, so each is given once.
#[test]
fn tensors_in_branches_keep_their_names() {
    let build = |other: &str| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", []));
        TowerContext::training(&graph).name_scope("scope", |_| {
            let then = |x: &[Tensor]| vec![x[0].named("given").sqrt().named("root") + 1.0];
            cond(&x.greater(0.0), &[&x], then, |x| vec![x[0].square().named(other)])
        });
        graph.freeze()
    };
    let session = Session::new(build("square").unwrap()).unwrap();
    let names = ["given", "root", "square"].map(|name| format!("scope/{name}"));
    let fetches = names.each_ref().map(|name| session.graph().fetch(name).unwrap());
    let found = session.run(&[&fetches[0], &fetches[1], &fetches[2]], &[("x", &HostTensor::scalar(9.0f32))]);
    assert_eq!(values(&found.unwrap()), [9.0, 3.0, 81.0]);
    assert!(build("root").unwrap_err().message().contains("the name \"scope/root\" is taken"));
}

/// Builds a branch and returns its error and the line of the call.
fn error(
    condition: impl FnOnce(&Tensor) -> Tensor,
    then: impl FnOnce(&[Tensor], &Tensor) -> Vec<Tensor>,
    otherwise: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> (Error, u32) {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let condition = condition(&x);
    let line = line!() + 1;
    let results = cond(&condition, &[&x], |inside| then(inside, &x), otherwise);
    let _ = results.iter().map(Tensor::sum).reduce(|a, b| a + b);
    (graph.freeze().unwrap_err(), line)
}

#[test]
fn mistakes_are_errors_at_the_line_of_the_call() {
    let positive = |x: &Tensor| x.sum().greater(0.0);
    let same = |x: &[Tensor]| vec![x[0].clone()];
    let is = |(e, line): (Error, u32), text: &str| {
        assert!(e.to_string().contains(text), "{e}");
        assert_eq!(e.site().map(|s| (s.file, s.line)), Some((file!(), line)), "{e}");
    };
    is(error(|x| x.greater(0.0), |x, _| same(x), same), "the condition is bool[2]");
    is(error(|x| x.sum(), |x, _| same(x), same), "the condition is f32[]");
    is(error(positive, |_, _| Vec::new(), same), "one branch returned 0 tensors, the other 1");
    is(error(positive, |x, _| vec![x[0].sum()], same), "result 0 is f32[] in one branch and f32[2]");
    is(error(positive, |x, _| vec![x[0].cast(DType::I32)], same), "result 0 is i32[2]");
    is(error(positive, |x, _| vec![x[0].slice_axis(0, 0, Some(1))], same), "got [2] for [1]");
    is(error(positive, |_, outside| vec![outside * 2.0], same), "`inputs`");
    is(error(positive, |_, outside| vec![outside.clone()], same), "`inputs`");
    let noise = |x: &[Tensor], _: &Tensor| vec![Random::uniform(0.0, 1.0).like(&x[0])];
    assert!(error(positive, noise, same).0.message().contains("cannot be part of"));
}

/// The error is that of the graph of `cond`, and the other one keeps working.
#[test]
fn an_input_of_another_graph_is_an_error() {
    let [graph, other] = [Graph::new(), Graph::new()];
    let [x, y] = [&graph, &other].map(|graph| graph.placeholder(&TensorSpec::f32("x", [])));
    let line = line!() + 1;
    let results = cond(&x.greater(0.0), &[&y], |y| y.to_vec(), |y| vec![y[0].sin()]);
    assert_eq!(results.len(), 1);
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("Tensor(x f32[]) belongs to another graph"), "{e}");
    assert_eq!(e.site().map(|s| (s.file, s.line)), Some((file!(), line)));
    other.freeze().unwrap();
}

/// An earlier error is the one that is reported, and the branches leave as many results.
#[test]
fn earlier_errors_come_first() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let wrong = x.matmul(&x);
    let open = wrong.sum().greater(&x.sum());
    for (open, x) in [(&open, &x), (&x.sum().greater(0.0), &wrong)] {
        let two = |x: &[Tensor]| vec![x[0].clone(), x[0].sin()];
        assert_eq!(cond(open, &[x], two, two).len(), 2);
    }
    assert!(graph.freeze().unwrap_err().message().contains("MatMul"));
}
