//! Curves: the cost and the moving summaries every few steps, hyper-parameters every epoch.

use super::{Line, line, lines};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{
    CollectCx, FetchHandle, GpuTracker, GradientStatistics, GraphCx, StepCurves, TrainCx,
};
use tensorpack::prelude::*;
use tensorpack::runtime::Cadence;
use tensorpack::train::Trained;

fn train(config: TrainConfig) -> Trained {
    launch_train_with_config(config, SimpleTrainer::new()).unwrap()
}

fn config(dir: &Path, steps: u64) -> TrainConfig {
    TrainConfig::new(Line, line(7)).steps_per_epoch(steps).logdir(dir)
}

/// Keeps the cost of every step.
struct Costs(Option<FetchHandle>, Arc<Mutex<Vec<f64>>>);

impl Callback for Costs {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cost = g.cost().expect("the trainer minimizes one cost");
        self.0 = Some(g.fetch(&cost, Cadence::Deferred));
        Ok(())
    }
    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        self.1.lock().unwrap().extend(self.0.and_then(|cost| values.scalar(cost)));
        Ok(())
    }
}

#[test]
fn one_percent_of_an_epoch_lies_between_two_points() {
    let dir = tempfile::tempdir().unwrap();
    let costs = Arc::new(Mutex::new(Vec::new()));
    train(config(dir.path(), 250).max_epoch(2).callback(Costs(None, costs.clone())));
    let points = lines(dir.path(), "steps.jsonl");
    let steps: Vec<u64> = points.iter().map(|p| p["global_step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (2..=500).step_by(2).collect::<Vec<u64>>());
    for point in &points {
        let step = point["global_step"].as_u64().unwrap();
        assert_eq!(point["epoch_num"], if step <= 250 { 1 } else { 2 }, "{point}");
        let cost = costs.lock().unwrap()[step as usize - 1];
        assert_eq!(point["cost"].as_f64(), Some(cost), "{point}");
        let distance = point["distance"].as_f64().unwrap();
        assert!((distance * distance - cost).abs() < 1e-6 * cost.abs() + 1e-12, "{point}");
    }
    // Readers of `stats.jsonl` see one line for each epoch, as before.
    assert_eq!(lines(dir.path(), "stats.jsonl").len(), 2);
}

#[test]
fn short_epochs_have_a_point_at_every_step_and_every_sets_another_distance() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path(), 5).max_epoch(2));
    assert_eq!(lines(dir.path(), "steps.jsonl").len(), 10);
    let extra: Vec<Box<dyn Callback>> = vec![Box::new(StepCurves::new().every(4))];
    let other = tempfile::tempdir().unwrap();
    train(config(other.path(), 5).max_epoch(2).extra_callbacks(extra));
    let steps: Vec<_> = lines(other.path(), "steps.jsonl").iter().map(|p| p["global_step"].clone()).collect();
    assert_eq!(steps, [4, 8]);
    let never: Vec<Box<dyn Callback>> = vec![Box::new(StepCurves::new().every(0))];
    let never = TrainConfig::new(Line, line(2)).no_logdir().extra_callbacks(never);
    let e = launch_train_with_config(never, SimpleTrainer::new()).err().expect("an error");
    assert!(e.message().contains("every"), "{e}");
}

/// Stops at a step, after saving.
struct StopAt(u64);

impl Callback for StopAt {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.0 {
            cx.request_save();
        }
        if cx.global_step == self.0 + 3 {
            return Err(tensorpack::Error::argument("three steps after the checkpoint"));
        }
        Ok(())
    }
}

#[test]
fn a_resumed_run_has_the_same_points_as_an_uninterrupted_one() {
    let whole = tempfile::tempdir().unwrap();
    train(config(whole.path(), 20).max_epoch(3));
    let expected = std::fs::read(whole.path().join("steps.jsonl")).unwrap();
    assert_eq!(lines(whole.path(), "steps.jsonl").len(), 60);
    for step in [1, 7, 20, 33] {
        let dir = tempfile::tempdir().unwrap();
        let failed = config(dir.path(), 20).max_epoch(3).callback(StopAt(step));
        assert!(launch_train_with_config(failed, SimpleTrainer::new()).is_err());
        assert!(lines(dir.path(), "steps.jsonl").len() as u64 > step, "lines after the checkpoint");
        train(config(dir.path(), 20).max_epoch(3));
        assert_eq!(std::fs::read(dir.path().join("steps.jsonl")).unwrap(), expected, "step {step}");
    }
}

#[test]
fn hyper_parameters_are_statistics_of_every_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let schedule = ScheduledHyperParamSetter::new("learning_rate", [(0, 0.5), (1, 0.25)]);
    train(config(dir.path(), 3).max_epoch(2).callback(schedule));
    let rates: Vec<_> = lines(dir.path(), "stats.jsonl").iter().map(|l| l["learning_rate"].clone()).collect();
    assert_eq!(rates, [0.5, 0.25]);
}

/// Reports the learning rate itself.
struct OwnRate;

impl Callback for OwnRate {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.put_scalar("learning_rate", -1.0);
        Ok(())
    }
}

#[test]
fn a_callback_that_reports_a_hyper_parameter_itself_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(config(dir.path(), 3).max_epoch(2).callback(OwnRate));
    assert_eq!(trained.monitors.history("learning_rate"), [(3, -1.0), (6, -1.0)]);
}

#[test]
fn gradient_statistics_are_the_norms_of_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(config(dir.path(), 6).max_epoch(1).callback(GradientStatistics::new().every(1)));
    // The update of plain SGD is the learning rate times the gradient.
    let points = lines(dir.path(), "stats.jsonl");
    assert_eq!(points.len(), 6);
    for p in &points {
        assert!(p["gradient_norm"].as_f64().unwrap() > 0.0, "{p}");
        let [update, weight] = ["update_norm", "weight_norm"].map(|name| p[name].as_f64().unwrap());
        let norm = p["gradient_norm"].as_f64().unwrap();
        assert!((update - 0.05 * norm).abs() < 1e-5 * norm, "{p}");
        let ratio = p["update_ratio"].as_f64().unwrap();
        assert!((ratio - update / weight).abs() < 1e-9, "{p}");
    }
    // The weights of the last step are those before its update.
    let last = points.last().unwrap();
    let squares: f64 = ["fc/W", "fc/b"]
        .iter()
        .flat_map(|name| trained.session.read(name).unwrap().to_f64_vec())
        .map(|x| x * x)
        .sum();
    let weight = last["weight_norm"].as_f64().unwrap();
    assert!((squares.sqrt() - weight).abs() <= last["update_norm"].as_f64().unwrap() + 1e-6);
    // By default they come at the end of epochs, every 100 steps, and do not change the run.
    let (plain, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let without = train(config(plain.path(), 6).max_epoch(1));
    let with = train(config(other.path(), 6).max_epoch(1).callback(GradientStatistics::new()));
    assert_eq!(with.session.read("fc/W").unwrap(), without.session.read("fc/W").unwrap());
    let stats = lines(other.path(), "stats.jsonl");
    assert!(stats.len() == 1 && stats[0]["update_ratio"].is_f64(), "{stats:?}");
}

#[test]
fn gradient_statistics_of_several_towers_are_those_of_the_average() {
    let stats = |towers: usize| {
        let dir = tempfile::tempdir().unwrap();
        // Every tower gets the same batch.
        let data = line(1);
        let config = TrainConfig::new(Line, data).steps_per_epoch(4).logdir(dir.path()).max_epoch(1);
        let config = config.callback(GradientStatistics::new());
        launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(towers)).unwrap();
        lines(dir.path(), "stats.jsonl").remove(0)
    };
    let (one, two) = (stats(1), stats(2));
    for name in ["gradient_norm", "update_ratio"] {
        let [a, b] = [&one, &two].map(|s| s[name].as_f64().unwrap());
        assert!((a - b).abs() < 1e-5 * a, "{name}: {a} and {b}");
    }
}

#[test]
fn gpus_are_tracked_or_training_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let tracked = config(dir.path(), 2).max_epoch(1).callback(GpuTracker::new());
    match launch_train_with_config(tracked, SimpleTrainer::new()) {
        Ok(_) => {
            let timing = lines(dir.path(), "timing.jsonl");
            assert!(timing[0]["GPU0 memory (GB)"].as_f64() > Some(0.0), "{timing:?}");
            assert!(lines(dir.path(), "stats.jsonl")[0].get("GPU0 memory (GB)").is_none());
        }
        Err(e) => {
            assert!([ErrorKind::Unsupported, ErrorKind::Engine].contains(&e.kind()), "{e}");
            assert!(e.to_string().contains("GpuTracker") && e.to_string().contains("nv"), "{e}");
        }
    }
}
