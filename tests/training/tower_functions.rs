//! Tower functions: called once per tower, and checked against their five rules.

use crate::models::{Line, line};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tensorpack::ErrorKind;
use tensorpack::graph::{
    LOCAL_VARIABLES, MODEL_VARIABLES, MOVING_SUMMARIES, SUMMARIES, TRAINABLE_VARIABLES, UPDATE_OPS,
};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};
use tensorpack_testing::assert_mentions;

fn signature() -> Vec<TensorSpec> {
    vec![TensorSpec::f32("x", [None, Some(3)])]
}

/// A net with a trainable variable, running statistics and summaries.
fn net(t: &TowerContext, inputs: &[Tensor]) -> Vec<Tensor> {
    let h = BatchNorm::new().apply(t, "bn", &Linear::new(2).apply(t, "fc", &inputs[0])).named("h");
    let cost = h.square().mean().named("cost");
    t.moving_summary(&[&cost]);
    t.summary(&[&h]);
    vec![cost]
}

fn input(graph: &Graph, name: &str) -> Tensor {
    graph.placeholder(&TensorSpec::f32(name, [None, Some(3)]))
}

/// Two training towers of a function.
fn two(graph: &Graph, tower: &mut TowerFunc) -> Result<()> {
    for i in 0..2 {
        let x = input(graph, &format!("x{i}"));
        tower.train(&TowerContext::new(graph, Mode::Training, i, 2), &[x])?;
    }
    Ok(())
}

#[test]
fn towers_share_variables_and_only_the_first_has_summaries() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(signature(), net).unwrap();
    two(&graph, &mut tower).unwrap();
    let names = |key: &str| {
        let ids = graph.collection(key).variables;
        ids.iter().map(|&id| graph.variable_handle(id).name().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(TRAINABLE_VARIABLES), ["fc/W", "fc/b", "bn/gamma", "bn/beta"]);
    // Model variables: trainable and non-trainable ones.
    assert_eq!(names(MODEL_VARIABLES)[4..], ["bn/mean/EMA", "bn/variance/EMA"]);
    for (key, name) in [(SUMMARIES, "tower0/h"), (MOVING_SUMMARIES, "tower0/cost")] {
        let first = graph.tensor(name).unwrap().id().unwrap();
        assert_eq!(graph.collection(key).tensors, [first], "{key}");
    }
    let updates = graph.collection_ops(UPDATE_OPS).len();
    tower.infer(&graph, "validation").unwrap();
    assert_eq!(graph.collection_ops(UPDATE_OPS).len(), updates);
    assert_eq!(graph.collection(MOVING_SUMMARIES).tensors.len(), 1);
    assert_eq!(names(TRAINABLE_VARIABLES).len(), 4);
}

#[test]
fn tensors_of_a_tower_are_found_by_name() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(signature(), net).unwrap();
    two(&graph, &mut tower).unwrap();
    tower.infer(&graph, "validation").unwrap();
    let towers = tower.towers();
    assert_eq!((towers.len(), towers.training().len(), towers.inference().len()), (3, 2, 1));
    let second = towers.training()[1];
    assert_eq!((second.scope(), second.mode()), ("tower1", Mode::Training));
    assert_eq!(second.get_tensor("cost").unwrap().name(), "tower1/cost");
    assert_eq!(second.get_tensor("x").unwrap().name(), "x1");
    assert_eq!(second.get_tensor("fc/W").unwrap().name(), "fc/W");
    assert_eq!(second.outputs()[0].name(), "tower1/cost");
    let validation = towers.get("validation").unwrap();
    assert_eq!(validation.get_tensor("cost").unwrap().name(), "validation/cost");
    assert_eq!(validation.inputs()[0].1.name(), "validation/x");
    let e = second.get_tensor("accuracy").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(&e, &["tower1", "\"accuracy\""]);
    let e = tower.infer(&graph, "validation").unwrap_err();
    assert!(e.message().contains("\"validation\" already exists"), "{e}");
}

#[test]
fn the_towers_of_a_trainer() {
    let cost = |t: &TowerContext, inputs: &[Tensor]| Line.build_graph(t, inputs);
    let input = FeedInput::new(line(2)).boxed();
    let trainer = SimpleTrainer::new();
    let trainer = trainer.setup_graph(Line.inputs(), input, cost, |t| Line.optimizer(t)).unwrap();
    assert_eq!(trainer.input_signature(), Line.inputs());
    assert_eq!(trainer.tower_func().signature(), Line.inputs());
    let towers = trainer.towers();
    assert_eq!(towers.training().len(), 1);
    assert_eq!(towers.training()[0].get_tensor("cost").unwrap().name(), "cost");
    assert_eq!(towers.training()[0].get_tensor("y").unwrap().name(), "y");
}

/// The context has the mode, and the function may build a different graph for it.
#[test]
fn the_context_has_the_mode() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(signature(), |t, inputs| {
        let told = [t.index(), t.total(), t.is_training() as usize, t.is_main_training_tower() as usize];
        let told = told.map(|n| n as f32).to_vec();
        let told = t.graph().constant(HostTensor::new([4], told).unwrap());
        let own = t.owns_variables() as usize as f64;
        vec![told, inputs[0].sum() * 0.0 + own]
    })
    .unwrap();
    two(&graph, &mut tower).unwrap();
    tower.infer(&graph, "validation").unwrap();
    let outputs: Vec<Tensor> = tower.towers().training()[..].iter().map(|t| t.outputs()[0].clone()).collect();
    let inferred = tower.towers().inference()[0].outputs()[0].clone();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let read = |t: &Tensor| session.run(&[t], &[]).unwrap()[0].to_f64_vec();
    assert_eq!(read(&outputs[0]), [0.0, 2.0, 1.0, 1.0]);
    assert_eq!(read(&outputs[1]), [1.0, 2.0, 1.0, 0.0]);
    assert_eq!(read(&inferred), [0.0, 1.0, 0.0, 0.0]);
}

/// The context has the names of its scopes. Those of variables do not depend on the tower.
#[test]
fn the_context_has_the_names_of_its_scopes() {
    let graph = Graph::new();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let record = seen.clone();
    let mut tower = TowerFunc::new(signature(), move |t, _| {
        let note = |t: &TowerContext| {
            record.borrow_mut().push([t.current_name_scope(), t.current_variable_scope()]);
        };
        note(t);
        t.scope("fc", |t| t.name_scope("product", note));
        vec![]
    })
    .unwrap();
    tower.train(&TowerContext::training(&graph), &[input(&graph, "x")]).unwrap();
    assert_eq!(seen.take(), [["", ""], ["fc/product", "fc"]]);
    two(&graph, &mut tower).unwrap();
    assert_eq!(seen.take()[2..], [["tower1", ""], ["tower1/fc/product", "fc"]]);
    tower.infer(&graph, "validation").unwrap();
    assert_eq!(seen.take(), [["validation", ""], ["validation/fc/product", "fc"]]);
}

#[test]
fn names_of_inputs_are_checked() {
    let named = |names: &[&str]| {
        let signature = names.iter().map(|n| TensorSpec::f32(*n, [None])).collect();
        TowerFunc::new(signature, |_, _| vec![]).map(|_| ())
    };
    assert!(named(&["x", "y"]).is_ok());
    for (names, why) in
        [(["x", "x"], "another input has the same name"), (["x", "a/b"], "must not contain '/'")]
    {
        let e = named(&names).unwrap_err();
        assert!(e.message().contains(why), "{e}");
    }
}

/// Checks that the error names this file, the variable and the rule.
#[track_caller]
fn assert_rule(e: &Error, variable: &str, rule: &str) {
    let text = e.to_string();
    assert!(text.contains(variable) && text.contains(rule), "{text}");
    assert!(e.site().is_some_and(|s| s.file.ends_with("tower_functions.rs")), "{text}");
}

/// Rule 1: it is called several times, and builds the same graph each time.
#[test]
fn a_function_that_counts_its_calls_is_an_error() {
    let counts = || {
        let calls = Cell::new(0);
        TowerFunc::new(signature(), move |t, inputs| {
            calls.set(calls.get() + 1);
            vec![Linear::new(1).apply(t, &format!("fc{}", calls.get()), &inputs[0]).mean()]
        })
        .unwrap()
    };
    let graph = Graph::new();
    assert_rule(&two(&graph, &mut counts()).unwrap_err(), "fc2/W does not exist", "(rule 1)");
    // In an inference tower during training, too: such a layer would never be trained.
    let (graph, mut tower) = (Graph::new(), counts());
    tower.train(&TowerContext::training(&graph), &[input(&graph, "x")]).unwrap();
    assert_rule(&tower.infer(&graph, "validation").unwrap_err(), "fc2/W does not exist", "(rule 1)");
    // Without training towers, an inference tower creates its variables.
    assert!(counts().infer(&Graph::new(), "").is_ok());
}

/// Rule 2: every trainable variable has a gradient.
#[test]
fn a_trainable_variable_that_no_gradient_reaches_is_an_error() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    t.variable(VariableSpec::new("count", []).init(Init::zeros()));
    let w = t.variable(VariableSpec::new("w", []).init(Init::ones()));
    let e = minimize(&w.square().named("cost"), &Sgd::new(0.1)).unwrap_err();
    assert_rule(&e, "trainable variable count", "rule 2 of tower functions");
}

/// Rule 3: only variable scopes determine the names of variables.
#[test]
fn names_of_variables_do_not_depend_on_name_scopes() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let w = t.name_scope("block", |t| t.scope("fc", |t| t.variable(VariableSpec::new("W", [2]))));
    assert_eq!(w.name(), "fc/W");
    let x = input(&graph, "x");
    t.name_scope("block", |t| Linear::new(1).apply(t, "test", &x));
    assert!(graph.variable_named("test/W").is_some());
    // A second variable of the same name.
    Linear::new(1).apply(t, "test", &x);
    assert_rule(&graph.first_error().unwrap_err(), "test/W already exists", "rule 3 of tower functions");
}

#[test]
fn a_layer_named_after_a_tensor_is_an_error() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(signature(), |t, inputs| {
        let x = &inputs[0] + 1.0;
        vec![Linear::new(1).apply(t, &x.named("shifted").name(), &x).mean()]
    })
    .unwrap();
    tower.train(&TowerContext::training(&graph), &[input(&graph, "x")]).unwrap();
    let e = tower.infer(&graph, "validation").unwrap_err();
    assert_rule(&e, "validation/shifted/W does not exist", "(rule 3)");
}

/// Rule 4: creation respects reuse; non-trainable variables may belong to one tower.
#[test]
fn a_reusing_tower_creates_no_trainable_variable() {
    let graph = Graph::new();
    let t = TowerContext::new(&graph, Mode::Training, 1, 2);
    let local = t.build(|t| t.variable(VariableSpec::new("seen", []).init(Init::zeros()).local()));
    assert_eq!(graph.collection(LOCAL_VARIABLES).variables.len(), 1);
    assert_eq!(local.name(), "seen");
    t.build(|t| t.variable(VariableSpec::new("w", [2])));
    assert_rule(
        &graph.first_error().unwrap_err(),
        "the variable w does not exist",
        "rule 4 of tower functions",
    );
}

/// `reuse` ends with its closure and does not affect other scopes.
#[test]
fn reuse_ends_with_its_scope() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let make = |t: &TowerContext| t.variable(VariableSpec::new("w", [2]));
    let (first, shared) = (make(t), t.reuse(make));
    assert_eq!(first.name(), shared.name());
    assert_eq!(graph.collection(TRAINABLE_VARIABLES).variables.len(), 1);
    make(t);
    assert!(graph.first_error().is_err());
}

/// Rule 5: the word `tower` is reserved.
#[test]
fn no_name_contains_tower() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    t.variable(VariableSpec::new("towering", [2]));
    assert_rule(&graph.first_error().unwrap_err(), "towering", "rule 5 of tower functions");
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    t.scope("tower0", |t| t.variable(VariableSpec::new("w", [2])));
    assert_rule(&graph.first_error().unwrap_err(), "tower0", "rule 5 of tower functions");
}
