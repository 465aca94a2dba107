//! Mistakes in a model become errors that name the operation, its scope and the shapes, and point
//! at the user's line, even if they surface inside layers, closures or gradients.

use super::models;
use std::cell::Cell;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Tensor, TensorSpec, VariableSpec};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::optim::{Adam, minimize};
use tensorpack::runtime::Session;
use tensorpack::tower::TowerContext;
use tensorpack::{Error, ErrorKind, HostTensor};
use tensorpack_testing::assert_mentions;

/// Checks that `error` points at `line` of this file.
#[track_caller]
fn assert_points_at(error: &Error, line: u32) {
    let site = error.site().unwrap_or_else(|| panic!("the error has no source location: {error}"));
    assert!(site.file.ends_with("tests/behaviour/errors.rs"), "points into {}: {error}", site.file);
    assert_eq!(site.line, line, "{error}");
}

fn zeros(sizes: &[usize]) -> HostTensor {
    HostTensor::zeros(tensorpack::DType::F32, sizes).unwrap()
}

thread_local! {
    /// The line of the call that is expected to fail.
    static WRONG: Cell<u32> = const { Cell::new(0) };
}

fn net(t: &TowerContext, x: &Tensor) -> Tensor {
    let x = Conv2d::new(8, 3).relu().apply(t, "conv0", x);
    t.scope("stage1", |t| block(t, &x))
}

fn block(t: &TowerContext, x: &Tensor) -> Tensor {
    let y = Conv2d::new(8, 3).stride(2).apply(t, "conv1", x);
    t.scope("block", |t| join(t, &y, x))
}

fn join(t: &TowerContext, y: &Tensor, x: &Tensor) -> Tensor {
    WRONG.set(line!() + 1);
    let sum = y + x;
    BatchNorm::new().apply(t, "bn", &sum)
}

#[test]
fn errors_three_functions_deep_name_scope_and_shapes() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(8), Some(8), Some(3)]));
    let y = net(&t, &x);
    assert_eq!(y.id(), None);
    let e = g.freeze().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert_mentions(&e, &["stage1/block/Add: ", "[4, 4, 4, 8]", "[4, 8, 8, 8]", "broadcast"]);
    assert_points_at(&e, WRONG.get());
    assert!(e.to_string().ends_with("\n  inputs: f32[4, 4, 4, 8], f32[4, 8, 8, 8]"), "{e}");
}

#[test]
fn errors_in_a_layer_point_at_its_caller() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(8)]));
    let line = line!() + 1;
    t.scope("net", |t| Conv2d::new(8, 3).apply(t, "conv0", &x));
    let e = g.freeze().unwrap_err();
    assert!(e.message().starts_with("net/conv0/Conv2d: ") && e.message().contains("[4, 8]"), "{e}");
    assert_points_at(&e, line);
    assert!(e.to_string().ends_with("\n  inputs: f32[4, 8]"), "{e}");
}

#[test]
fn errors_in_a_closure_point_into_it() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(8)]));
    let line = Cell::new(0);
    t.scope("head", |t| {
        let w = t.variable(VariableSpec::new("W", [9, 2]));
        line.set(line!() + 1);
        let y = x.matmul(&w);
        y.relu()
    });
    let e = g.freeze().unwrap_err();
    assert_mentions(&e, &["head/MatMul: ", "[?, 8]", "[9, 2]"]);
    assert_points_at(&e, line.get());
    assert!(e.to_string().ends_with("\n  inputs: f32[?, 8], f32[9, 2]"), "{e}");
}

/// A custom layer.
#[track_caller]
fn scaled(t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
    t.layer(name, x, |t| Linear::new(3).apply(t, "fc", x))
}

#[test]
fn errors_in_a_custom_layer_point_into_it() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4)]));
    let outside = line!() + 1;
    scaled(&t, "mine", &x);
    let e = g.freeze().unwrap_err();
    assert!(e.message().starts_with("mine/fc/Linear: ") && e.message().contains("[4]"), "{e}");
    let site = e.site().unwrap();
    assert!(site.file.ends_with("tests/behaviour/errors.rs") && site.line < outside, "{e}");
}

#[test]
fn composed_operations_point_at_their_caller() {
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(10)]));
    let label = g.placeholder(&TensorSpec::i32("label", [Some(5)]));
    let line = line!() + 1;
    let cost = x.sparse_softmax_cross_entropy(&label).mean();
    assert_eq!(cost.id(), None);
    let e = g.freeze().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.message().starts_with("SparseSoftmaxCrossEntropy/"), "{e}");
    assert_points_at(&e, line);
}

#[test]
fn shapes_that_conflict_only_once_fed() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let a = g.placeholder(&TensorSpec::f32("a", [None, Some(3)]));
    let b = g.placeholder(&TensorSpec::f32("b", [None, Some(3)]));
    let line = Cell::new(0);
    let sum = t.scope("late", |_| {
        line.set(line!() + 1);
        let sum = &a + &b;
        sum.relu()
    });
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let e = session.run(&[&sum], &[("a", &zeros(&[2, 3])), ("b", &zeros(&[4, 3]))]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert_mentions(&e, &["late/Add: ", "[2, 3]", "[4, 3]", "broadcast"]);
    assert_points_at(&e, line.get());
    assert!(e.to_string().ends_with("\n  inputs: [2, 3], [4, 3]"), "{e}");
    let good = session.run(&[&sum], &[("a", &zeros(&[2, 3])), ("b", &zeros(&[1, 3]))]).unwrap();
    assert_eq!(good[0].sizes(), [2, 3]);
}

#[test]
fn labels_and_logits_of_different_batch_sizes() {
    let model = models::mlp();
    let [image, _] = model.batch(4, 0);
    let [_, label] = model.batch(5, 0);
    let session = Session::new(model.graph.freeze().unwrap()).unwrap();
    let e = session.run(&[&model.cost], &[("image", &image), ("label", &label)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.message().starts_with("SparseSoftmaxCrossEntropy/"), "{e}");
    assert_mentions(&e, &["[5, 10]", "[4, 10]", "broadcast"]);
    assert!(e.site().unwrap().file.ends_with("models/mod.rs"), "{e}");
}

/// Returns the first error of a session after `misuse` of handles of its frozen graph.
fn after_freezing(misuse: impl FnOnce(&TowerContext, &Tensor)) -> Error {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
    let session = Session::new(g.freeze().unwrap()).unwrap();
    misuse(&t, &x);
    let e = session.run(&[&x], &[("x", &zeros(&[2, 3]))]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Graph);
    // The error is returned once; the session remains usable.
    assert_eq!(session.run(&[&x], &[("x", &zeros(&[2, 3]))]).unwrap()[0].sizes(), [2, 3]);
    e
}

#[test]
fn use_after_freezing_is_the_sessions_next_error() {
    let line = line!() + 1;
    let e = after_freezing(|_, x| drop(x.relu()));
    assert_mentions(&e, &["Relu: ", "frozen"]);
    assert_points_at(&e, line);
    assert!(e.to_string().contains("session"), "{e}");

    let line = line!() + 1;
    let e = after_freezing(|_, x| drop(x + 1.0));
    assert_mentions(&e, &["frozen"]);
    assert_points_at(&e, line);
}

#[test]
fn layers_after_freezing_point_at_their_caller_too() {
    let line = line!() + 1;
    let e = after_freezing(|t, x| drop(Linear::new(4).apply(t, "fc", x)));
    assert_mentions(&e, &["frozen"]);
    assert_points_at(&e, line);

    let line = line!() + 1;
    let e = after_freezing(|_, x| drop(x.softmax()));
    assert_points_at(&e, line);
}

#[test]
fn differentiating_after_freezing_is_an_error() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [3]));
    let cost = w.sum();
    let _frozen = g.freeze().unwrap();
    for e in [gradients(&cost, &[&w]).unwrap_err(), minimize(&cost, &Adam::new(0.1)).unwrap_err()] {
        assert_eq!(e.kind(), ErrorKind::Graph);
        assert_mentions(&e, &["frozen"]);
    }
}

#[test]
fn freezing_twice_is_an_error() {
    let g = Graph::new();
    let again = g.clone();
    assert!(g.freeze().is_ok());
    assert_eq!(again.freeze().unwrap_err().kind(), ErrorKind::Graph);
}

#[test]
fn the_first_error_wins() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(8)]));
    let line = line!() + 1;
    let first = x.reshape(&[5]);
    let _second = x.matmul(&x);
    let _third = t.variable(VariableSpec::new("a b", [1]));
    let _named = first.named("spaces are bad");
    assert_points_at(&g.first_error().unwrap_err(), line);
    assert_points_at(&g.clone().freeze().unwrap_err(), line);
    assert!(g.freeze().unwrap_err().message().starts_with("Reshape: "));
}

#[test]
fn poison_tensors_pass_through_every_operation() {
    let g = Graph::new();
    let t = &TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(8)]));
    let label = g.placeholder(&TensorSpec::i32("label", [Some(4)]));
    let line = line!() + 1;
    let bad = x.reshape(&[5]);
    let y = Linear::new(3).apply(t, "fc", &bad);
    let y = Conv2d::new(3, 3).apply(t, "conv", &y).max_pool(2).global_average_pool();
    let y = BatchNorm::new().relu().apply(t, "bn", &y).flatten(1).dropout(0.5).softmax().log_softmax();
    let y = (y.matmul(&x) + 1.0 - &x).matrix_transpose().squeeze(-1).expand_dims(0);
    let (mean, variance) = y.moments(&[0]);
    let y = (mean * variance).pow(&y).exp().abs().sum_axes(&[-1]).max_keep(&[0]).cast(y.dtype());
    let cost = y.sparse_softmax_cross_entropy(&label).mean().named("cost");
    let w = t.variable(VariableSpec::new("w", [1]));
    let update = w.update(|w| w * &cost);
    let assign = w.assign(&cost);
    let both = g.group(&[&update, &assign]);
    assert_eq!((cost.id(), both.id()), (None, None));
    assert_points_at(&gradients(&cost, &[&w]).unwrap_err(), line);
    assert_points_at(&minimize(&cost, &Adam::new(0.1)).unwrap_err(), line);
    assert_points_at(&g.freeze().unwrap_err(), line);
}

#[test]
fn minimize_returns_an_earlier_error_before_its_own() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [3]));
    let vector = w.value() * 2.0;
    let e = minimize(&vector, &Adam::new(0.1)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Gradient);
    assert_mentions(&e, &["Mul", "f32[3]", "scalar"]);
    let line = line!() + 1;
    let _bad = w.reshape(&[2]);
    assert_points_at(&minimize(&vector, &Adam::new(0.1)).unwrap_err(), line);
}

#[test]
fn errors_in_gradients_point_at_the_forward_line() {
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct OneWay;
    impl tensorpack::graph::OpDef for OneWay {
        fn name(&self) -> &str {
            "OneWay"
        }
        fn infer(
            &self,
            inputs: &[tensorpack::graph::Spec],
        ) -> tensorpack::Result<Vec<tensorpack::graph::Spec>> {
            Ok(inputs.to_vec())
        }
        fn lower(
            &self,
            cx: &mut tensorpack::kir::LowerCx<'_>,
        ) -> tensorpack::Result<Vec<tensorpack::kir::View>> {
            Ok(vec![cx.input(0)])
        }
    }
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [3]));
    let line = line!() + 1;
    let y = t.scope("net", |_| Tensor::apply_one(OneWay, &[&w]));
    let e = minimize(&y.sum(), &Adam::new(0.1)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Gradient);
    assert_mentions(&e, &["net/OneWay", "no gradient"]);
    assert_points_at(&e, line);
}

/// Checks that every node of a graph was created in a file of the user, not in one of the library.
#[track_caller]
fn assert_users_lines(model: &str, graph: Graph) {
    let frozen = graph.freeze().unwrap();
    assert!(!frozen.nodes().is_empty(), "{model}");
    for node in frozen.nodes() {
        assert!(!node.site.file.starts_with("src/"), "{model}: {} points at {}", node.name, node.site);
    }
}

#[test]
fn no_node_points_at_a_line_of_the_library() {
    assert_users_lines("mlp", models::mlp().graph);
    assert_users_lines("mnist", models::mnist().graph);
    assert_users_lines("resnet", models::small_resnet().graph);
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(6)]));
    let results = [Tensor::relu, Tensor::silu, Tensor::mean].map(|f| f(&x));
    let parts = x.unstack(0).iter().map(Tensor::square).collect::<Vec<_>>();
    let cost = g.stack(&parts, 1).mean_axes(&[0]).sum() + &results[2];
    gradients(&cost, &[&x]).unwrap();
    assert_users_lines("function pointers", g);
}
