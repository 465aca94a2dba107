//! Callbacks that observe training.

use crate::models::{Line, line};
use serde_json::Value;
use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::callback::{
    EstimatedTimeLeft, HostMemoryTracker, MergeAllSummaries, ParamSummary, ProcessTensors, SendStat,
    SimpleMovingAverage, Summary, ThroughputTracker,
};
use tensorpack::graph::SUMMARIES;
use tensorpack::prelude::*;

fn config(dir: &Path) -> TrainConfig {
    TrainConfig::new(Line, line(3)).logdir(dir).max_epoch(3)
}

fn lines(dir: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn timing_statistics_are_written_separately() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path())
        .callback(ThroughputTracker::new())
        .callback(PeriodicTrigger::new(ThroughputTracker::samples(4)).every_k_steps(2))
        .callback(EstimatedTimeLeft::default())
        .callback(HostMemoryTracker::new());
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let timing = lines(dir.path(), "timing.jsonl");
    let steps_with = |name: &str| {
        let with = timing.iter().filter(|l| l[name].is_number());
        with.map(|l| l["global_step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(steps_with("Throughput (steps/sec)"), [3, 6, 9]);
    assert_eq!(steps_with("Throughput (samples/sec)"), [2, 4, 6, 8]);
    assert_eq!(steps_with("EstimatedTimeLeft (sec)"), [3, 6, 9]);
    assert!(timing.iter().filter_map(|l| l["Throughput (steps/sec)"].as_f64()).all(|x| x > 0.0));
    let left: Vec<f64> = timing.iter().filter_map(|l| l["EstimatedTimeLeft (sec)"].as_f64()).collect();
    assert!(left[0] > 0.0 && left[2] == 0.0, "{left:?}");
    if cfg!(target_os = "linux") {
        assert_eq!(steps_with("HostFreeMemory (GB)"), [3, 6, 9]);
    }
    let stats = std::fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
    assert!(!stats.contains("Throughput") && !stats.contains("Memory"), "{stats}");
}

#[test]
fn summaries_at_the_end_of_epochs_and_every_few_steps() {
    /// [`Line`] with summaries.
    struct Summed;
    impl ModelDesc for Summed {
        fn inputs(&self) -> Vec<TensorSpec> {
            Line.inputs()
        }
        fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
            let cost = Line.build_graph(t, inputs);
            t.graph().add_to_collection(SUMMARIES, &cost.sqrt().named("root"));
            cost
        }
        fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
            Line.optimizer(t)
        }
    }
    let steps = |summaries: MergeAllSummaries| {
        let dir = tempfile::tempdir().unwrap();
        let config = TrainConfig::new(Summed, line(3)).logdir(dir.path()).max_epoch(2);
        let config = config.extra_callbacks(vec![Box::new(summaries)]);
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        let stats = lines(dir.path(), "stats.jsonl");
        let with = stats.iter().filter(|l| l["root"].is_number());
        with.map(|l| l["global_step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(steps(MergeAllSummaries::default()), [3, 6]);
    assert_eq!(steps(MergeAllSummaries::default().every_steps(2)), [2, 3, 4, 6]);
}

#[test]
fn simple_moving_averages() {
    let dir = tempfile::tempdir().unwrap();
    let costs = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let noted = costs.clone();
    let config = config(dir.path()).callback(SimpleMovingAverage::new(["cost"], 4)).callback(
        ProcessTensors::new(["cost"], move |_, values| {
            noted.borrow_mut().push(values[0].to_scalar()?);
            Ok(())
        }),
    );
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let costs = costs.take();
    let mean = |to: usize| costs[to - 4..to].iter().sum::<f64>() / 4.0;
    let put: Vec<(u64, f64)> = lines(dir.path(), "stats.jsonl")
        .iter()
        .filter_map(|l| Some((l["global_step"].as_u64()?, l["cost/SMA"].as_f64()?)))
        .collect();
    assert_eq!(put, [(4, mean(4)), (8, mean(8))]);
}

#[test]
fn summaries_of_variables() {
    let dir = tempfile::tempdir().unwrap();
    let summary = ParamSummary::new("fc/W", [Summary::Rms, Summary::Mean]).and(".*", [Summary::Histogram]);
    let config = config(dir.path()).callback(summary).callback(MinSaver::new("param-summary/fc/W-rms"));
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let w = trained.session.read("fc/W").unwrap().to_f64_vec();
    let stats = lines(dir.path(), "stats.jsonl");
    let last = stats.last().unwrap();
    let put = |kind: &str| last[format!("param-summary/fc/W-{kind}")].as_f64().unwrap();
    assert!((put("mean") - w.iter().sum::<f64>() / 3.0).abs() < 1e-12);
    assert!((put("rms") - (w.iter().map(|x| x * x).sum::<f64>() / 3.0).sqrt()).abs() < 1e-12);
    assert!(last.get("param-summary/fc/b-mean").is_none());
    // The second is valid, but matches no whole name.
    for pattern in ["(", "fc"] {
        let summary = ParamSummary::new(pattern, [Summary::Mean]);
        let config = TrainConfig::new(Line, line(3)).no_logdir().callback(summary);
        let e = launch_train_with_config(config, SimpleTrainer::new()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Name, "{e}");
        assert!(e.message().contains(&format!("{pattern:?}")), "{e}");
    }
}

#[test]
fn send_stat_runs_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sent");
    // A failing command does not end training.
    let send = SendStat::new(format!("echo {{cost}} >> '{}'; exit 3", file.display()), ["cost"]);
    launch_train_with_config(config(dir.path()).callback(send), SimpleTrainer::new()).unwrap();
    let sent = std::fs::read_to_string(file).unwrap();
    let sent: Vec<f64> = sent.lines().map(|l| l.parse().unwrap()).collect();
    let put: Vec<f64> = lines(dir.path(), "stats.jsonl").iter().filter_map(|l| l["cost"].as_f64()).collect();
    assert_eq!(sent, put);
    assert_eq!(sent.len(), 3);
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_runs_during_training() {
    use std::cell::RefCell;
    use std::process::Command;
    use std::rc::Rc;
    use std::time::{Duration, Instant};
    use tensorpack::callback::{StartProcess, TrainCx};
    /// Returns the number of processes with this argument.
    fn with_argument(mark: &str) -> usize {
        let of = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let all = std::fs::read_dir("/proc").unwrap().map(|e| e.unwrap().file_name());
        all.filter(|pid| of(&pid.to_string_lossy()).split('\0').any(|a| a == mark)).count()
    }
    struct Look(String, Rc<RefCell<Vec<usize>>>);
    impl Callback for Look {
        fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            // A process exists before its arguments can be read, longer with a cold disk cache.
            let begun = Instant::now();
            while with_argument(&self.0) == 0 && begun.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.1.borrow_mut().push(with_argument(&self.0));
            Ok(())
        }
    }
    // Unique, even if two test processes run at the same time.
    let mark = format!("61.{}", std::process::id());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut sleep = Command::new("sleep");
    sleep.arg(&mark);
    let config = || TrainConfig::new(Line, line(1)).no_logdir().max_epoch(2);
    let with_process = config().callback(StartProcess::new(sleep)).callback(Look(mark.clone(), seen.clone()));
    launch_train_with_config(with_process, SimpleTrainer::new()).unwrap();
    assert_eq!(seen.take(), [1, 1]);
    assert_eq!(with_argument(&mark), 0);
    let missing = config().callback(StartProcess::new(Command::new("no-such-program")));
    let e = launch_train_with_config(missing, SimpleTrainer::new()).err().expect("an error");
    assert!(e.message().contains("cannot start no-such-program"), "{e}");
}

/// A command that takes too long is killed, with the processes it started, and training continues.
#[test]
#[cfg(target_os = "linux")]
fn a_command_has_a_deadline() {
    use std::time::{Duration, Instant};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let none: [&str; 0] = [];
    let send = SendStat::new(format!("sleep 3600 & echo $! > '{}'; wait", file.display()), none);
    let start = Instant::now();
    let config = TrainConfig::new(Line, line(2)).no_logdir().max_epoch(1);
    let config = config.callback(send.deadline(Duration::from_secs(2)));
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    // Gone, or dead and not yet waited for by its new parent.
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    let killed = Instant::now();
    while is_alive() && killed.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_alive(), "process {pid} is still running");
}
