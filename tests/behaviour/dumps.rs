//! Graphs as text and in DOT format. The expected files are in `tests/dumps`.

use tensorpack::graph::{Graph, Init, TensorSpec, VariableSpec};
use tensorpack::tower::TowerContext;

fn small() -> tensorpack::graph::Frozen {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let y = t.scope("fc", |t| {
        let w = t.variable(VariableSpec::new("W", [3, 2]));
        x.matmul(&w).relu()
    });
    y.sum().named("cost");
    let seen = t.variable(VariableSpec::new("seen", []).init(Init::zeros()).non_trainable());
    let count = seen.update(|s| s + 1.0);
    let pooled = x.reshape(&[-1, 1, 1, 3]).max_pool(1);
    let reset = seen.assign(&pooled.sum());
    g.group(&[&count, &reset]);
    g.freeze().unwrap()
}

#[track_caller]
fn assert_same(got: &str, expected: &str) {
    assert!(got == expected, "the dump is\n\n{got}\nbut was expected to be\n\n{expected}");
}

#[test]
fn text() {
    assert_same(&small().to_text(), include_str!("../dumps/small.txt"));
}

#[test]
fn dot() {
    assert_same(&small().to_dot(), include_str!("../dumps/small.dot"));
}
