//! The default callbacks and monitors of `train_with_defaults`: which they are, and that each works.

use crate::line::{Line, batch, batches};
use std::path::Path;
use std::process::Command;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::{Trained, default_callbacks, default_monitors};

const STEPS: u64 = 3;
/// The directory in which a child process trains.
const DIR: &str = "TENSORPACK_TEST_DEFAULTS";

/// A model that gives every default callback something to do.
struct Summarized;

impl ModelDesc for Summarized {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line(|| Sgd::new(0.1).boxed()).inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = Line(|| Sgd::new(0.1).boxed()).build_graph(t, inputs);
        t.moving_summary(&[&cost]);
        let steps = t.variable(VariableSpec::new("steps", []).init(Init::zeros()).non_trainable());
        t.graph().add_op_to_collection(UPDATE_OPS, &steps.update(|n| n + 1.0));
        t.summary(&[&(steps.value() * 10.0).named("level")]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// Trains with or without the defaults.
fn train(config: RunConfig, defaults: bool) -> Trained {
    let cost = |t: &TowerContext, inputs: &[Tensor]| Summarized.build_graph(t, inputs);
    let input = FeedInput::new(batches(STEPS, || ())).boxed();
    let trainer = SimpleTrainer::new();
    let trainer = trainer.setup_graph(Summarized.inputs(), input, cost, |t| Summarized.optimizer(t)).unwrap();
    let config = config.max_epoch(2);
    let trained = if defaults { trainer.train_with_defaults(config) } else { trainer.train(config) };
    trained.unwrap()
}

fn monitors(trained: &Trained) -> Vec<String> {
    trained.monitors.state()["monitors"].as_object().unwrap().keys().cloned().collect()
}

fn steps(trained: &Trained) -> f64 {
    trained.session.read("steps").unwrap().to_scalar().unwrap()
}

#[test]
fn the_list_of_defaults() {
    let callbacks: Vec<String> = default_callbacks().iter().map(|c| c.name()).collect();
    let (first, last) = callbacks.split_at(3);
    assert_eq!(first, ["MovingAverageSummary", "StepCurves", "ProgressBar"]);
    assert_eq!(last, ["MergeAllSummaries", "RunUpdateOps", "HyperParamSummary", "Profiler"]);
    let listed = |logdir| default_monitors(logdir).iter().map(|m| m.name()).collect::<Vec<_>>();
    assert_eq!(listed(Some(Path::new("run"))), ["EventWriter", "JsonWriter", "ScalarPrinter"]);
    assert_eq!(listed(None), ["ScalarPrinter"]);
    // Training uses these monitors and no others.
    let dir = tempfile::tempdir().unwrap();
    let mut with_logdir = monitors(&train(RunConfig::new().logdir(dir.path()), true));
    with_logdir.sort();
    assert_eq!(with_logdir, ["EventWriter", "JsonWriter", "ScalarPrinter"]);
    assert_eq!(monitors(&train(RunConfig::new().no_logdir(), true)), ["ScalarPrinter"]);
}

/// Trains in a child process, because the environment and the logger belong to the whole process.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let trained = train(RunConfig::new().logdir(dir), true);
    assert_eq!(steps(&trained), 2.0 * STEPS as f64, "RunUpdateOps runs with every step");
}

/// Returns the costs of gradient descent with rate 0.1 from the initial weights, before each step.
fn costs() -> Vec<f64> {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let inputs: Vec<Tensor> = Summarized.inputs().iter().map(|spec| graph.placeholder(spec)).collect();
    let cost = Line(|| Sgd::new(0.1).boxed()).build_graph(t, &inputs);
    let step = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let data = batch().unwrap();
    let run = |_| {
        let cost = session.run(&[&cost, &step], &[("x", &data[0]), ("y", &data[1])]).unwrap();
        cost[0].to_scalar().unwrap()
    };
    (0..2 * STEPS).map(run).collect()
}

#[test]
fn every_default_is_effective() {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "defaults::child", "--nocapture", "--test-threads", "1"])
        .env(DIR, dir.path())
        .env("TENSORPACK_LOG", "info")
        .env("TENSORPACK_PROGRESS_REFRESH", "0")
        .output()
        .unwrap();
    let written = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{written}");

    // JsonWriter: one line per epoch, with the statistics of two callbacks and nothing else.
    let stats = std::fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = stats.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{stats}");
    let costs = costs();
    for (epoch, line) in lines.iter().enumerate() {
        let names: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["cost", "epoch_num", "global_step", "level"], "{stats}");
        let done = STEPS as usize * (epoch + 1);
        // MovingAverageSummary: the debiased average of the costs so far.
        let sum = costs[..done].iter().fold(0.0, |sum, cost| 0.95 * sum + 0.05 * cost);
        let average = sum / (1.0 - 0.95f64.powi(done as i32));
        let found = line["cost"].as_f64().unwrap();
        assert!((found - average).abs() < 1e-5 * average, "epoch {epoch}: {found}, not {average}");
        // MergeAllSummaries: the value in the last step, before its update.
        assert_eq!(line["level"].as_f64().unwrap(), 10.0 * (done - 1) as f64);
    }

    // ProgressBar: with no delay between two lines, one per step.
    let log = std::fs::read_to_string(dir.path().join("log.log")).unwrap();
    for epoch in 1..=2 {
        for step in 1..=STEPS {
            let progress = format!("epoch {epoch}: {step}/{STEPS} ");
            assert_eq!(log.matches(&progress).count(), 1, "{progress}: {log}");
        }
    }
    // ScalarPrinter: each statistic once per epoch.
    for name in ["\n  cost ", "\n  level "] {
        assert_eq!(log.matches(name).count(), 2, "{name:?}: {log}");
    }

    // EventWriter: a file that TensorBoard reads, with both statistics.
    let events = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let events: Vec<_> = events.filter(|path| path.to_string_lossy().contains("tfevents")).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    let bytes = std::fs::read(&events[0]).unwrap();
    for name in ["cost", "level"] {
        // A summary value holds its tag as field 1: a length, then the name.
        let tag = [&[0x0a, name.len() as u8], name.as_bytes()].concat();
        assert!(bytes.windows(tag.len()).filter(|w| *w == tag).count() >= 2, "{name}");
    }
}

/// Without the defaults there is nothing but the training step.
#[test]
fn train_uses_no_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(RunConfig::new().logdir(dir.path()), false);
    assert_eq!(steps(&trained), 0.0);
    assert_eq!(monitors(&trained), [""; 0]);
    assert_eq!((trained.monitors.latest("cost"), trained.monitors.latest("level")), (None, None));
    assert!(!dir.path().join("stats.jsonl").exists());
    // The step itself is the same.
    let with_defaults = train(RunConfig::new().no_logdir(), true);
    let weight = |trained: &Trained| trained.session.read("fc/W").unwrap();
    assert_eq!(weight(&trained), weight(&with_defaults));
}
