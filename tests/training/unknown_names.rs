//! An error about a name that does not exist lists the nearest names that do.

use crate::models::{Knobs, Line, line};
use tensorpack::ErrorKind;
use tensorpack::callback::{ProgressBar, RunUpdateOps};
use tensorpack::input::{FeedInput, InputSource, RemapInput};
use tensorpack::prelude::*;

#[track_caller]
fn check<T>(result: Result<T>, asked: &str, suggested: &str) {
    let e = result.err().expect("the name does not exist");
    assert!(matches!(e.kind(), ErrorKind::Name | ErrorKind::Argument), "{e}");
    assert!(e.message().contains(&format!("{asked:?}")), "{e}");
    let text = e.to_string();
    let note = text.lines().find(|l| l.contains(" are: ")).unwrap_or_else(|| panic!("no names in {e}"));
    assert!(note.contains(suggested), "{e}");
}

/// A graph with more names than a message lists.
fn deep() -> (Graph, Tensor) {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let mut x = graph.placeholder(&TensorSpec::f32("image", [None, Some(2)]));
    for i in 0..20 {
        x = Linear::new(2).relu().apply(t, &format!("layer{i}"), &x);
    }
    let cost = x.mean().named("the_cost");
    (graph, cost)
}

#[test]
fn names_in_graphs_and_sessions() {
    let (graph, cost) = deep();
    check(graph.tensor("the_cots"), "the_cots", "the_cost");
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    check(session.graph().fetch("The_cost"), "The_cost", "the_cost");
    check(session.read("layer17/w"), "layer17/w", "layer17/W");
    let x = HostTensor::new([1, 2], vec![0f32, 1.0]).unwrap();
    check(session.run(&[&cost], &[("imgae", &x)]), "imgae", "image");
}

#[test]
fn names_in_configurations() {
    fn train(callback: impl Callback + 'static) -> Result<()> {
        let config = TrainConfig::new(Knobs, line(2)).no_logdir().max_epoch(1).callback(callback);
        launch_train_with_config(config, SimpleTrainer::new()).map(drop)
    }
    check(train(ProgressBar::new(["cots"])), "cots", "cost");
    check(train(EarlyStopping::min("cots")), "cots", "cost");
    check(train(ScheduledHyperParamSetter::new("konb", [(0, 1.0)])), "konb", "knob");
    check(train(RunUpdateOps::new("updates")), "updates", "trainable_variables");
    check(train(InferenceRunner::new(line(1), [ScalarStats::new("cots")])), "cots", "cost");
}

#[test]
fn names_of_inputs() {
    let config = PredictConfig::new(Line, ["cost"]).unwrap().inputs(["xs", "y"]);
    check(OfflinePredictor::new(config), "xs", "x, y");
    let mut input = RemapInput::new(FeedInput::new(line(2)), ["x", "z"]);
    check(input.tensors(&TowerContext::training(&Graph::new()), &Line.inputs()), "z", "x, y");
}
