//! Nothing can be added to a frozen graph, and frozen variables are not updated.

use crate::every_optimizer::OPTIMIZERS;
use crate::line::{Line, batch, batches};
use std::panic::Location;
use tensorpack::ErrorKind;
use tensorpack::callback::{GraphCx, TrainCx};
use tensorpack::graph::SUMMARIES;
use tensorpack::prelude::*;

/// Handles of a graph that is frozen.
struct Handles {
    graph: Graph,
    t: TowerContext,
    x: Tensor,
    w: Variable,
    op: Op,
}

type Misuse = fn(&Handles) -> &'static Location<'static>;

/// Every kind of addition. Each returns its own line.
const ADDITIONS: [(&str, Misuse); 15] = [
    ("an operation", |h| (drop(&h.x + 1.0), Location::caller()).1),
    ("a constant", |h| (drop(h.graph.constant(HostTensor::scalar(1.0f32))), Location::caller()).1),
    ("an input", |h| (drop(h.graph.placeholder(&TensorSpec::f32("late", []))), Location::caller()).1),
    ("a variable", |h| (drop(h.t.variable(VariableSpec::new("late", [2]))), Location::caller()).1),
    ("a hyperparameter", |h| (drop(h.t.hyper_param("late", 1.0)), Location::caller()).1),
    ("a layer", |h| (drop(Linear::new(1).apply(&h.t, "late", &h.x)), Location::caller()).1),
    ("an assignment", |h| (drop(h.w.assign(h.w.value())), Location::caller()).1),
    ("an update", |h| (drop(h.w.update(|w| w + 1.0)), Location::caller()).1),
    ("a group", |h| (drop(h.graph.group(&[&h.op])), Location::caller()).1),
    ("a name", |h| (drop(h.x.named("late")), Location::caller()).1),
    ("a tensor in a collection", |h| (h.graph.add_to_collection("late", &h.x), Location::caller()).1),
    ("an operation in a collection", |h| (h.graph.add_op_to_collection("late", &h.op), Location::caller()).1),
    ("a summary", |h| (h.t.summary(&[&h.x]), Location::caller()).1),
    ("a moving summary", |h| (h.t.moving_summary(&[&h.x]), Location::caller()).1),
    ("a frozen variable", |h| (h.graph.freeze_variables("w"), Location::caller()).1),
];

#[test]
fn nothing_can_be_added_to_a_frozen_graph() {
    for (what, add) in ADDITIONS {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(3)]));
        let w = t.variable(VariableSpec::new("w", [2]));
        let op = w.update(|w| w * 2.0);
        let handles = Handles { graph: graph.clone(), t, x: x.clone(), w, op };
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let (nodes, variables) = (session.graph().nodes().len(), session.graph().variables().len());
        let at = add(&handles);
        let fed = HostTensor::zeros(DType::F32, [1, 3]).unwrap();
        let e = session.run(&[&x], &[("x", &fed)]).err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert_eq!(e.kind(), ErrorKind::Graph, "{what}: {e}");
        assert!(e.message().contains("the graph is frozen"), "{what}: {e}");
        assert_eq!(e.site().map(|s| (s.file, s.line)), Some((at.file(), at.line())), "{what}: {e}");
        assert_eq!((session.graph().nodes().len(), session.graph().variables().len()), (nodes, variables));
        assert!(session.graph().collection("late").tensors.is_empty(), "{what}");
        assert!(session.graph().collection(SUMMARIES).tensors.is_empty(), "{what}");
        // The error is reported once; the session still works.
        assert_eq!(session.run(&[&x], &[("x", &fed)]).unwrap(), [fed], "{what}");
    }
}

/// Adds an operation to the graph in a hook of training.
struct AddsLate {
    hook: &'static str,
    cost: Option<Tensor>,
}

impl AddsLate {
    fn add_in(&self, hook: &str) {
        if let Some(cost) = self.cost.as_ref().filter(|_| hook == self.hook) {
            drop(cost.square());
        }
    }
}

impl Callback for AddsLate {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.cost = Some(g.tensor("cost")?);
        self.add_in("setup_graph");
        Ok(())
    }
    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.add_in("before_train");
        Ok(())
    }
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.add_in("trigger_step");
        Ok(())
    }
}

/// Callbacks may add to the graph when they set up; then training freezes it.
#[test]
fn training_freezes_the_graph() {
    let train = |hook| {
        let config = TrainConfig::new(Line(|| Sgd::new(0.1).boxed()), batches(4, || ()));
        let config = config.callback(AddsLate { hook, cost: None }).max_epoch(1).no_logdir();
        launch_train_with_config(config, SimpleTrainer::new())
    };
    train("setup_graph").unwrap();
    for hook in ["before_train", "trigger_step"] {
        let e = train(hook).err().unwrap_or_else(|| panic!("an addition in {hook} was accepted"));
        assert_eq!(e.kind(), ErrorKind::Graph, "{hook}: {e}");
        assert!(e.message().contains("the graph is frozen"), "{hook}: {e}");
        assert!(e.site().is_some_and(|s| s.file.ends_with("freezing.rs")), "{hook}: {e}");
    }
}

/// How variables are frozen.
type Freeze = fn(&TowerContext, &Tensor) -> Tensor;

/// Weight decay, momentum and moving averages do not change a frozen variable either.
#[test]
fn no_optimizer_updates_a_frozen_variable() {
    let ways: [(&str, Freeze); 2] = [
        ("by the context", |t, x| {
            t.freeze_variables(|t| Linear::new(2).activation(Activation::Tanh).apply(t, "body", x))
        }),
        ("by name", |t, x| {
            let y = Linear::new(2).activation(Activation::Tanh).apply(t, "body", x);
            t.graph().freeze_variables("body/.*");
            y
        }),
    ];
    for (name, optimizer) in OPTIMIZERS {
        for (how, freeze) in ways {
            let graph = Graph::new();
            let t = &TowerContext::training(&graph);
            let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
            let y = graph.placeholder(&TensorSpec::f32("y", [None, Some(1)]));
            let out = Linear::new(1).apply(t, "head", &freeze(t, &x));
            let train = minimize(&(out - &y).square().mean(), &*optimizer()).unwrap();
            let session = Session::new(graph.freeze().unwrap()).unwrap();
            let names = ["body/W", "body/b", "head/W", "head/b"];
            let read = || names.map(|name| session.read(name).unwrap());
            let before = read();
            let data = batch().unwrap();
            for _ in 0..4 {
                session.run(&[&train], &[("x", &data[0]), ("y", &data[1])]).unwrap();
            }
            for ((variable, before), after) in names.iter().zip(before).zip(read()) {
                let unchanged = after.as_bytes() == before.as_bytes();
                assert_eq!(unchanged, variable.starts_with("body/"), "{name}, frozen {how}: {variable}");
            }
        }
    }
}
