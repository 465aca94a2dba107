//! Settings that cannot work are errors before training starts. They name the user's line.

use crate::models::{Knobs, Line, line};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::{FeedInput, QueueInput, RemapInput};
use tensorpack::optim::{Optimizer, Schedule};
use tensorpack::prelude::*;
use tensorpack::train::{Ended, RunConfig, StepCx, Strategy, Trained};
use tensorpack_testing::assert_mentions;

/// Returns a value and the line on which it was made.
macro_rules! here {
    ($value:expr) => {
        ($value, line!())
    };
}

/// Checks the kind of an error, its line in this file, and terms of its message.
#[track_caller]
fn check<T>(result: Result<T>, kind: ErrorKind, line: u32, terms: &[&str]) {
    let e = result.err().expect("an error");
    assert_eq!(e.kind(), kind, "{e}");
    let site = e.site().unwrap_or_else(|| panic!("no line: {e}"));
    assert!(site.file.ends_with("bad_settings.rs"), "{e}");
    assert_eq!(site.line, line, "{e}");
    assert_mentions(&e, terms);
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

/// Trains for one epoch with a callback, in a directory of its own.
fn with(callback: impl Callback + 'static) -> Result<Trained> {
    let dir = tempfile::tempdir().unwrap();
    train(TrainConfig::new(Knobs, line(2)).logdir(dir.path()).max_epoch(1).callback(callback))
}

#[test]
fn schedules_of_callbacks() {
    let (empty, at) = here!(ScheduledHyperParamSetter::new("knob", []));
    check(with(empty), ErrorKind::Argument, at, &["knob", "empty"]);
    let (nan, at) = here!(ScheduledHyperParamSetter::new("knob", [(0, 0.1), (3, f64::NAN)]));
    check(with(nan), ErrorKind::Argument, at, &["NaN", "point 3", "finite"]);
    let (twice, at) = here!(ScheduledHyperParamSetter::new("knob", [(3, 0.1), (3, 0.2)]));
    check(with(twice), ErrorKind::Argument, at, &["point 3", "0.1", "0.2"]);
}

/// [`Line`] with a learning rate from a schedule.
struct Scheduled(Schedule);

impl ModelDesc for Scheduled {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(self.0.clone()).boxed()
    }
}

#[test]
fn schedules_of_optimizers() {
    let nan = f64::NAN;
    for (schedule, at, term) in [
        here!(Schedule::constant(nan)).with("NaN"),
        here!(Schedule::piecewise(0.1, [(5, f64::INFINITY)])).with("inf"),
        here!(Schedule::piecewise(0.1, [(5, 0.1), (5, 0.2)])).with("increase"),
        here!(Schedule::exponential(0.1, nan, 10)).with("NaN"),
        here!(Schedule::staircase(nan, 0.1, 10)).with("NaN"),
        here!(Schedule::polynomial(0.1, nan, 10, 1.0)).with("NaN"),
        here!(Schedule::polynomial(0.1, 0.0, 10, nan)).with("NaN"),
        here!(Schedule::cosine(0.1, nan, 10)).with("NaN"),
        here!(Schedule::cosine(0.1, 0.0, 0)).with("at least 1 step"),
    ] {
        let result = train(TrainConfig::new(Scheduled(schedule), line(2)).no_logdir().max_epoch(1));
        check(result, ErrorKind::Argument, at, &["Schedule", term]);
    }
}

/// Appends a term to a pair.
trait With<T> {
    fn with(self, term: &'static str) -> (T, u32, &'static str);
}

impl<T> With<T> for (T, u32) {
    fn with(self, term: &'static str) -> (T, u32, &'static str) {
        (self.0, self.1, term)
    }
}

#[test]
fn tags_and_numbers_of_savers() {
    for (saver, at) in [
        here!(MinSaver::new("cost").tag("../../evil")),
        here!(MinSaver::new("cost").tag("")),
        here!(MinSaver::new("cost").tag("latest")),
    ] {
        check(with(saver), ErrorKind::Argument, at, &["tag"]);
    }
    let (none, at) = here!(MaxSaver::new("cost").best(0));
    check(with(none), ErrorKind::Argument, at, &["best(0)", "at least 1"]);
    let (many, at) = here!(MaxSaver::new("cost").best(usize::MAX));
    check(with(many), ErrorKind::Argument, at, &["best"]);
    assert_eq!(with(MinSaver::new("cost").tag("tower0/a b").best(1)).unwrap().ended, Ended::Finished);
}

/// Requests a checkpoint with a tag that is not allowed.
struct Evil;

impl Callback for Evil {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.tag_save("../../evil");
        Ok(())
    }
}

#[test]
fn tags_of_callbacks() {
    let at = line!() - 7;
    check(with(Evil), ErrorKind::Argument, at, &["../../evil", "tag"]);
}

#[test]
fn shards() {
    for (flow, at) in [here!(line(4).shard(0, 0)), here!(line(4).shard(3, 3))] {
        let result = train(TrainConfig::new(Line, flow).no_logdir().max_epoch(1));
        check(result, ErrorKind::Argument, at, &["shard"]);
    }
}

/// A model with two inputs; the second has this name.
struct Named(&'static str);

impl ModelDesc for Named {
    fn inputs(&self) -> Vec<TensorSpec> {
        let second = TensorSpec::f32(self.0, [None, Some(1)]);
        vec![TensorSpec::f32("x", [None, Some(3)]), second]
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Linear::new(1).apply(t, "fc", &inputs[0]).square().mean()
    }
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

/// The line is that of the spec, whoever creates the placeholder.
#[test]
fn names_of_inputs() {
    let at = line!() - 14;
    for (bad, kind) in [("two words", ErrorKind::Name), ("x", ErrorKind::Name), ("", ErrorKind::Name)] {
        let whole = TrainConfig::new(Named(bad), line(2)).no_logdir().max_epoch(1);
        check(train(whole), kind, at, &[bad]);
        let only_x = RemapInput::new(FeedInput::new(line(2).map(|s| Ok(s[..1].to_vec()))), ["x"]);
        let part = TrainConfig::with_input(Named(bad), only_x).no_logdir().max_epoch(1);
        check(train(part), kind, at, &[bad]);
    }
    let predictor = PredictConfig::new(Named("two words"), ["fc/output"]).and_then(OfflinePredictor::new);
    check(predictor, ErrorKind::Name, at, &["two words"]);
}

#[test]
fn an_empty_log_directory() {
    let e = train(TrainConfig::new(Line, line(2)).logdir("").max_epoch(1)).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    assert_mentions(&e, &["logdir", "no_logdir"]);
}

/// The queue is bounded by bytes, so any number of batches is allowed.
#[test]
fn a_queue_of_any_capacity_works() {
    for batches in [0, 1, usize::MAX / 2, usize::MAX] {
        let input = QueueInput::new(line(2)).capacity(batches);
        let config = TrainConfig::with_input(Line, input).no_logdir().max_epoch(1);
        assert_eq!(train(config).unwrap().ended, Ended::Finished, "{batches}");
    }
}

/// An iteration that runs the train op once would train only one of several asynchronous towers.
#[test]
fn an_iteration_of_ones_own_with_asynchronous_towers() {
    let build = |towers: usize| {
        let input = Box::new(QueueInput::new(line(4)));
        let model = |t: &TowerContext, inputs: &[Tensor]| Line.build_graph(t, inputs);
        let trainer = AsyncMultiGpuTrainer::new(towers);
        trainer.setup_graph(Line.inputs(), input, model, |t| Line.optimizer(t)).unwrap()
    };
    let config = || RunConfig::new().no_logdir().max_epoch(1).steps_per_epoch(2);
    let trainer = build(2);
    let op = trainer.train_op().clone();
    let (own, at) = here!(trainer.with_iteration(move |cx: &mut StepCx<'_>| cx.run(&op).map(|_| ())));
    check(own.train(config()), ErrorKind::Argument, at, &["with_iteration", "2", "towers"]);
    // One tower has nothing to lose.
    let trainer = build(1);
    let op = trainer.train_op().clone();
    let own = trainer.with_iteration(move |cx: &mut StepCx<'_>| cx.run(&op).map(|_| ()));
    assert_eq!(own.train(config()).unwrap().ended, Ended::Finished);
}
