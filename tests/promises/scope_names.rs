//! The same scope name given twice: variables never collide silently, and tensors get a suffix.

use tensorpack::ErrorKind;
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};

#[track_caller]
fn weight(t: &TowerContext, name: &str) -> Variable {
    t.variable(VariableSpec::new(name, [2]).init(Init::zeros()))
}

/// Opening a scope again continues it.
#[test]
fn a_scope_can_be_opened_twice_for_other_variables() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let first = t.scope("block", |t| weight(t, "a"));
    let second = t.scope("block", |t| weight(t, "b"));
    assert_eq!([first.name(), second.name()], ["block/a", "block/b"]);
    graph.freeze().unwrap();
}

#[test]
fn a_variable_of_a_scope_opened_twice_is_an_error() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    t.scope("block", |t| weight(t, "a"));
    let line = line!() + 1;
    t.scope("block", |t| weight(t, "a"));
    let e = graph.freeze().unwrap_err();
    assert_eq!(
        (e.kind(), e.site().map(|s| (s.file, s.line))),
        (ErrorKind::Name, Some((file!(), line))),
        "{e}"
    );
    assert!(e.message().contains("block/a already exists"), "{e}");
    assert!(e.to_string().contains("rule 3") && e.to_string().contains("reuse"), "{e}");
}

#[test]
fn a_layer_name_given_twice_is_an_error() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let y = Linear::new(3).apply(t, "fc", &x);
    let line = line!() + 1;
    Linear::new(3).apply(t, "fc", &y);
    let e = graph.freeze().unwrap_err();
    assert_eq!(
        (e.kind(), e.site().map(|s| (s.file, s.line))),
        (ErrorKind::Name, Some((file!(), line))),
        "{e}"
    );
    assert!(e.message().contains("fc/W already exists"), "{e}");
}

/// Tensors get a unique name by default. A name that the user gives is taken only once.
#[test]
fn tensors_of_a_scope_opened_twice_get_a_suffix() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let make = |name: &str| t.name_scope(name, |_| x.relu()).name();
    let names = [make("block"), make("block"), make("other")];
    assert_eq!(names, ["block/Relu", "block/Relu_1", "other/Relu"]);
    t.name_scope("block", |_| x.relu().named("out"));
    graph.first_error().unwrap();
    t.name_scope("block", |_| x.tanh().named("out"));
    let e = graph.freeze().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert!(e.message().contains("\"block/out\" is taken"), "{e}");
}

/// A name may contain one scope twice. Towers and inference then share the right variables.
#[test]
fn a_scope_inside_a_scope_of_the_same_name() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(vec![TensorSpec::f32("x", [])], |t, inputs| {
        let (inner, outer) = t.scope("block", |t| (t.scope("block", |t| weight(t, "w")), weight(t, "w")));
        vec![(inner.sum() * 2.0 + outer.sum()) * &inputs[0]]
    })
    .unwrap();
    for i in 0..2 {
        let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), []));
        tower.train(&TowerContext::new(&graph, Mode::Training, i, 2), &[x]).unwrap();
    }
    tower.infer(&graph, "validation").unwrap();
    let towers = tower.towers();
    let outputs: Vec<Tensor> =
        towers.training().iter().chain(&towers.inference()).map(|t| t.outputs()[0].clone()).collect();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let names: Vec<&str> = session.graph().variables().iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["block/block/w", "block/w"]);
    let ones = |x: f32| HostTensor::new([2], vec![x; 2]).unwrap();
    session.write("block/block/w", &ones(10.0)).unwrap();
    session.write("block/w", &ones(1.0)).unwrap();
    let one = HostTensor::scalar(1.0f32);
    for y in &outputs {
        let got = session.run(&[y], &[("x0", &one), ("x1", &one), ("validation/x", &one)]).unwrap();
        assert_eq!(got[0].to_scalar().unwrap(), 42.0, "{}", y.name());
    }
}

#[test]
fn the_name_of_an_inference_tower_given_twice_is_an_error() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(vec![TensorSpec::f32("x", [])], |_, inputs| inputs.to_vec()).unwrap();
    tower.infer(&graph, "validation").unwrap();
    let e = tower.infer(&graph, "validation").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert!(e.message().contains("\"validation\" already exists"), "{e}");
    tower.infer(&graph, "test").unwrap();
}
