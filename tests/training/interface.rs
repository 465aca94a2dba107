//! The training interface: models, configurations and trainers, and their checks.

use crate::life_cycle::{Recorder, TWO_EPOCHS, config};
use crate::models::{Line, line};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorpack::ErrorKind;
use tensorpack::callback::{ProgressBar, TrainCx};
use tensorpack::dataflow::{DataFlow, FromIter};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::io::{DictRestore, Keep};
use tensorpack::monitor::{Class, Moment, Monitor};
use tensorpack::prelude::*;
use tensorpack::train::{Ended, SingleCostTrainer, StepCx, Trained, default_callbacks, default_monitors};

fn weights(trained: &Trained) -> Vec<HostTensor> {
    ["fc/W", "fc/b"].map(|name| trained.session.read(name).unwrap()).to_vec()
}

fn error(result: Result<Trained>) -> Error {
    result.err().expect("an error")
}

#[test]
fn a_trainer_of_a_configuration_trains() {
    let launched = launch_train_with_config(config(), SimpleTrainer::new()).unwrap();
    let simple = SimpleTrainer::from_config(config()).train().unwrap();
    let queue = QueueInputTrainer::from_config(config()).train().unwrap();
    for trained in [&simple, &queue] {
        assert_eq!(trained.ended, Ended::Finished);
        assert_eq!(weights(trained), weights(&launched));
    }
    let untrained = launch_train_with_config(config().max_epoch(0), SimpleTrainer::new()).unwrap();
    assert_ne!(weights(&untrained), weights(&launched));
}

/// Passes signature, input, cost and optimizer to `setup_graph`, without a [`ModelDesc`].
#[test]
fn setup_graph_without_a_model_desc() {
    let set_up = || {
        let cost = |t: &TowerContext, inputs: &[Tensor]| Line.build_graph(t, inputs);
        let input = FeedInput::new(line(2)).boxed();
        SimpleTrainer::new().setup_graph(Line.inputs(), input, cost, |t| Line.optimizer(t)).unwrap()
    };
    let launched = launch_train_with_config(config(), SimpleTrainer::new()).unwrap();
    let two_epochs = || RunConfig::new().no_logdir().max_epoch(2);
    assert_eq!(weights(&set_up().train_with_defaults(two_epochs()).unwrap()), weights(&launched));
    let recorder = Recorder::default();
    let recorded = two_epochs().callback(recorder.clone());
    assert_eq!(weights(&set_up().train(recorded).unwrap()), weights(&launched));
    assert_eq!(recorder.take(), TWO_EPOCHS);
}

/// A step that runs the train op twice trains like two steps.
#[test]
fn a_custom_iteration_of_a_ready_trainer() {
    let set_up = || {
        let cost = |t: &TowerContext, inputs: &[Tensor]| Line.build_graph(t, inputs);
        let input = FeedInput::new(line(4)).boxed();
        let trainer = SingleCostTrainer::from(SimpleTrainer::new());
        trainer.setup_graph(Line.inputs(), input, cost, |t| Line.optimizer(t)).unwrap()
    };
    let steps = |n| RunConfig::new().no_logdir().steps_per_epoch(n).max_epoch(1);
    let single = set_up().train(steps(4)).unwrap();
    let mut trainer = set_up();
    let recorder = Recorder::default();
    trainer.register_callback(recorder.clone());
    let op = trainer.train_op().clone();
    let trainer = trainer.with_iteration(move |cx: &mut StepCx<'_>| {
        cx.run(&op)?;
        cx.run(&op).map(|_| ())
    });
    let double = trainer.train(steps(2)).unwrap();
    assert_eq!(weights(&double), weights(&single));
    assert_eq!(double.session.run_index().unwrap(), 4);
    assert_eq!(recorder.take().iter().filter(|call| call.starts_with("trigger_step")).count(), 2);
    // The tower function stays with the trainer.
    double.get_predictor(&["x", "y"], &["cost"]).unwrap();
}

#[test]
fn a_cost_is_a_scalar() {
    let cost = |t: &TowerContext, inputs: &[Tensor]| Linear::new(1).apply(t, "fc", &inputs[0]);
    let input = FeedInput::new(line(2)).boxed();
    let trainer = SimpleTrainer::new();
    let e = trainer.setup_graph(Line.inputs(), input, cost, |t| Line.optimizer(t)).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.message().contains("not a scalar") && e.to_string().contains("take its mean"), "{e}");
}

#[test]
fn the_noop_trainer_runs_callbacks() {
    let drawn = Arc::new(AtomicU64::new(0));
    let counted = drawn.clone();
    let flow = line(2).map(move |sample| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(sample)
    });
    let recorder = Recorder::default();
    let nothing = TrainConfig::with_input(Line, FeedInput::new(flow)).no_logdir().max_epoch(2);
    let nothing = nothing.callback(recorder.clone()).extra_callbacks(vec![]);
    let trained = launch_train_with_config(nothing, NoOpTrainer::new()).unwrap();
    assert_eq!(recorder.take(), TWO_EPOCHS);
    assert_eq!(drawn.load(Ordering::Relaxed), 0);
    let fresh = TrainConfig::with_input(Line, FeedInput::new(line(2))).no_logdir().max_epoch(0);
    assert_eq!(weights(&trained), weights(&launch_train_with_config(fresh, SimpleTrainer::new()).unwrap()));
}

fn steps(recorder: &Recorder) -> usize {
    recorder.take().iter().filter(|c| c.starts_with("trigger_step")).count()
}

#[test]
fn an_epoch_defaults_to_a_pass_over_the_data() {
    let recorder = Recorder::default();
    let config =
        |n: usize| TrainConfig::new(Line, line(n)).no_logdir().max_epoch(1).callback(recorder.clone());
    launch_train_with_config(config(5), SimpleTrainer::new()).unwrap();
    assert_eq!(steps(&recorder), 5);
    launch_train_with_config(config(5).steps_per_epoch(7), SimpleTrainer::new()).unwrap();
    assert_eq!(steps(&recorder), 7);
    let unknown = FromIter::new(|_| {
        std::iter::once_with(|| {
            Ok(vec![HostTensor::zeros(DType::F32, [4, 3])?, HostTensor::zeros(DType::F32, [4, 1])?])
        })
    });
    let unsized_config = || TrainConfig::new(Line, unknown.clone()).no_logdir().max_epoch(1);
    let e = error(launch_train_with_config(unsized_config(), SimpleTrainer::new()));
    assert!(e.message().contains("steps per epoch is unknown"), "{e}");
    assert!(e.to_string().contains("steps_per_epoch"), "{e}");
    launch_train_with_config(unsized_config().steps_per_epoch(3), SimpleTrainer::new()).unwrap();
}

/// The size of an epoch determines when callbacks run, but not the order of data.
#[test]
fn the_size_of_an_epoch_does_not_change_weights() {
    let train = |steps: u64, epochs: u64| {
        let config = TrainConfig::new(Line, line(5).shuffle()).no_logdir();
        let config = config.steps_per_epoch(steps).max_epoch(epochs);
        weights(&launch_train_with_config(config, SimpleTrainer::new()).unwrap())
    };
    assert_eq!(train(3, 4), train(12, 1));
    assert_eq!(train(4, 3), train(12, 1));
}

#[test]
fn epochs_are_numbered_from_the_starting_epoch() {
    let recorder = Recorder::default();
    let numbered = || config().starting_epoch(3).callback(recorder.clone());
    launch_train_with_config(numbered().max_epoch(4), SimpleTrainer::new()).unwrap();
    let calls = recorder.take();
    assert_eq!(calls[0], "before_train 2 -1 0");
    let epochs: Vec<&String> = calls.iter().filter(|c| c.starts_with("before_epoch")).collect();
    assert_eq!(epochs, ["before_epoch 3 -1 0", "before_epoch 4 1 2"]);
    let trained = launch_train_with_config(numbered().max_epoch(2), SimpleTrainer::new()).unwrap();
    assert_eq!(trained.ended, Ended::Finished);
    assert_eq!(recorder.take(), ["before_train 2 -1 0", "after_train 2 -1 0"]);
}

/// Contradictions are errors before the log directory is created.
#[test]
fn contradictory_configurations_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let seed = SessionOptions { seed: 2, ..SessionOptions::default() };
    for (config, what) in
        [(config().starting_epoch(0), "starting_epoch is 0"), (config().seed(1).session(seed), "seed")]
    {
        let e = error(launch_train_with_config(config.logdir(&dir), SimpleTrainer::new()));
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.message().contains(what), "{e}");
        assert!(!dir.exists(), "{e}");
    }
}

#[test]
fn session_init_and_seed() {
    let start =
        |config: TrainConfig| launch_train_with_config(config.max_epoch(0), SimpleTrainer::new()).unwrap();
    assert_eq!(weights(&start(config())), weights(&start(config().seed(0))));
    assert_ne!(weights(&start(config())), weights(&start(config().seed(1))));
    let w = HostTensor::new([3, 1], vec![1.0f32, -2.0, 0.5]).unwrap();
    let b = HostTensor::new([1], vec![0.25f32]).unwrap();
    let init = DictRestore::new([("fc/W".to_string(), w.clone()), ("fc/b".to_string(), b.clone())]);
    assert_eq!(weights(&start(config().session_init(init))), [w, b]);
}

/// The seed survives session options that are set after it, and the other way round.
#[test]
fn seed_and_session_options_hold_in_any_order() {
    let start = |config: TrainConfig| {
        weights(&launch_train_with_config(config.max_epoch(0), SimpleTrainer::new()).unwrap())
    };
    let one_thread = || SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let expected = start(config().seed(5));
    assert_ne!(start(config()), expected);
    assert_eq!(start(config().session(one_thread()).seed(5)), expected);
    assert_eq!(start(config().seed(5).session(one_thread())), expected);
}

/// A deadline too far away for the clock is no deadline.
#[test]
fn the_longest_deadline_trains() {
    let forever = || config().deadline(Duration::MAX);
    for trainer in [
        SingleCostTrainer::from(SimpleTrainer::new()),
        SyncMultiGpuTrainerReplicated::new(2).into(),
        AsyncMultiGpuTrainer::new(2).into(),
    ] {
        assert_eq!(launch_train_with_config(forever(), trainer).unwrap().ended, Ended::Finished);
    }
}

/// Records the names of scalars.
struct Names(Arc<Mutex<Vec<String>>>);

impl Monitor for Names {
    fn name(&self) -> String {
        "Names".into()
    }
    fn scalar(&mut self, name: &str, _: f64, _: Class, at: Moment) -> Result<()> {
        self.0.lock().unwrap().push(format!("{name} {}", at.global_step));
        Ok(())
    }
}

#[test]
fn default_callbacks_and_monitors_can_be_replaced() {
    let names: Vec<String> = default_callbacks().iter().map(|c| c.name()).collect();
    let (first, last) = names.split_at(3);
    assert_eq!(first, ["MovingAverageSummary", "StepCurves", "ProgressBar"]);
    assert_eq!(last, ["MergeAllSummaries", "RunUpdateOps", "HyperParamSummary", "Profiler"]);
    let names = |logdir| default_monitors(logdir).iter().map(|m| m.name()).collect::<Vec<_>>();
    assert_eq!(names(Some(Path::new("run"))), ["EventWriter", "JsonWriter", "ScalarPrinter"]);
    assert_eq!(names(None), ["ScalarPrinter"]);

    let put = Arc::new(Mutex::new(Vec::new()));
    let watched = || config().monitors(vec![Box::new(Names(put.clone()))]);
    launch_train_with_config(watched(), SimpleTrainer::new()).unwrap();
    assert_eq!(std::mem::take(&mut *put.lock().unwrap()), ["cost 2", "cost 4"]);
    // Without the moving averages, no callback reports the cost.
    let bar: Vec<Box<dyn Callback>> = vec![Box::new(ProgressBar::default())];
    launch_train_with_config(watched().extra_callbacks(bar), SimpleTrainer::new()).unwrap();
    assert!(put.lock().unwrap().is_empty());
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    // The name of an event file contains the time.
    let short = |name: String| if name.contains("tfevents") { "events".to_string() } else { name };
    let mut names: Vec<String> = entries.map(short).collect();
    names.sort();
    names
}

#[test]
fn files_in_the_log_directory() {
    let dir = tempfile::tempdir().unwrap();
    let train = |config: TrainConfig| {
        let config = config.logdir(dir.path()).callback(ModelSaver::new()).keep(Keep::last(1));
        launch_train_with_config(config, SimpleTrainer::new()).unwrap()
    };
    train(config());
    let left = ["checkpoints", "events", "lock", "log.log", "manifest.json", "stats.jsonl", "steps.jsonl"];
    assert_eq!(files(dir.path()), [&left[..], &["timing.jsonl"]].concat());
    assert_eq!(files(&dir.path().join("checkpoints")), ["latest", "step-0000000004"]);
    // With `fresh`, existing files are moved aside.
    let untrained = train(config().fresh().max_epoch(0));
    assert_eq!(untrained.session.run_index().unwrap(), 0);
    let names = files(dir.path());
    assert!(names.contains(&"checkpoints.1".to_string()), "{names:?}");
    assert_eq!(files(&dir.path().join("checkpoints.1")), ["latest", "step-0000000004"]);
}

/// Callbacks of a configuration run in the order they were added, then the default callbacks.
#[test]
fn callbacks_are_called_in_the_order_they_were_given() {
    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);
    impl Callback for Named {
        fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.1.lock().unwrap().push(self.0);
            Ok(())
        }
    }
    let calls = Arc::new(Mutex::new(Vec::new()));
    let named = |name| Named(name, calls.clone());
    let config = config()
        .max_epoch(1)
        .callback(named("a"))
        .extra_callbacks(vec![Box::new(named("extra"))])
        .callbacks(vec![Box::new(named("b")), Box::new(named("c"))])
        .callback(named("d"));
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["a", "b", "c", "d", "extra"]);
}

/// Results are bit-identical for any number of threads.
#[test]
fn results_do_not_depend_on_threads() {
    let with = |threads| {
        let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
        weights(&launch_train_with_config(config().session(options), SimpleTrainer::new()).unwrap())
    };
    assert_eq!(with(1), with(3));
}
