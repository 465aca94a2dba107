//! Timelines of steps, and reports of where everything is.

use crate::models::{Line, line};
use crate::processes;
use crate::trace::{self, Trace};
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorpack::callback::{Profiler, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::graph::{GradCx, OpDef, Spec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::SingleCostTrainer;

/// The identity, which sleeps, and at one call waits for a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slow {
    milliseconds: u64,
    /// The number of the call that waits, and the file it waits for.
    waits: Option<(u64, PathBuf)>,
}

static CALLS: AtomicU64 = AtomicU64::new(0);

impl OpDef for Slow {
    fn name(&self) -> &str {
        "Slow"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().clone())])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(self.clone())))
    }
}

impl CustomKernel for Slow {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs[0].clone_from(&inputs[0]);
        std::thread::sleep(Duration::from_millis(self.milliseconds));
        if let Some((call, file)) = &self.waits
            && CALLS.fetch_add(1, Ordering::Relaxed) + 1 == *call
        {
            eprintln!("{WAITING}");
            let begun = Instant::now();
            while !file.exists() {
                if begun.elapsed() > LIMIT {
                    return Err(Error::argument("the file did not come"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

/// After this time a child ends, so that a test that fails does not wait for ever.
const LIMIT: Duration = Duration::from_secs(100);
const WAITING: &str = "a kernel waits for a file";

/// [`Line`] with a slow kernel in its last tower.
struct SlowLine {
    slow: Slow,
    tower: usize,
}

impl ModelDesc for SlowLine {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let out = Linear::new(1).apply(t, "fc", &inputs[0]);
        let out = if t.index() == self.tower { Tensor::apply_one(self.slow.clone(), &[&out]) } else { out };
        (out - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

/// Sleeps in two of its hooks.
struct Sleepy;

impl Callback for Sleepy {
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        std::thread::sleep(Duration::from_millis(4));
        Ok(())
    }

    fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        std::thread::sleep(Duration::from_millis(60));
        Ok(())
    }
}

#[test]
fn child_with_a_profiled_epoch() {
    let Some(dir) = processes::dir() else { return };
    let read = |sample| {
        std::thread::sleep(Duration::from_millis(6));
        Ok(sample)
    };
    let model = SlowLine { slow: Slow { milliseconds: 5, waits: None }, tower: 0 };
    let config = TrainConfig::new(model, line(10).map(read))
        .callback(Profiler::steps(11..=20))
        .callback(Sleepy)
        .callback(ModelSaver::new())
        .logdir(dir)
        .max_epoch(3);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
}

/// Returns the seconds in the line of an epoch: all steps, input, compute, other, callbacks.
fn epoch_line(text: &str, epoch: u64) -> Vec<f64> {
    let begin = format!("epoch {epoch}: ");
    let mut lines = text.lines().filter(|line| line.contains("= input"));
    let line = lines.find_map(|l| l.split_once(&begin)).expect("the line of the epoch").1;
    let numbers = line.split_whitespace().filter_map(|word| word.trim_end_matches(';').parse().ok());
    numbers.collect()
}

/// Returns the seconds of all spans of this name.
fn seconds(trace: &Trace, name: &str) -> f64 {
    trace.named(name).iter().map(|event| (event.ended - event.begun) as f64 * 1e-9).sum()
}

/// The sums over the timeline of an epoch are those of its line in the log.
#[test]
fn an_epoch_on_the_timeline_has_the_times_of_its_line_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("timeline::child_with_a_profiled_epoch", dir.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    let trace = trace::read(&dir.path().join("timeline-11-20.json"));
    let steps = seconds(&trace, "steps of an epoch");
    let (input, compute) = (seconds(&trace, "input"), seconds(&trace, "compute"));
    let found = [steps, input, compute, steps - input - compute, seconds(&trace, "callbacks after an epoch")];
    let logged = epoch_line(&text, 2);
    assert_eq!(logged.len(), found.len(), "{text}");
    for (found, logged) in found.into_iter().zip(logged) {
        // The log has milliseconds.
        assert!((found - logged).abs() <= 0.05 * logged + 0.0006, "{found} on the timeline, {logged} logged");
    }
    for step in 11..=20 {
        assert_eq!(trace.named(&format!("step {step}")).len(), 1);
    }
    assert!(trace.named("step 10").is_empty() && trace.named("step 21").is_empty());
    // Each part lies in its step, and on the thread of the training loop.
    let first = trace.named("step 11")[0];
    let compute = trace.named("compute")[0];
    assert!(first.begun <= compute.begun && compute.ended <= first.ended && first.thread == compute.thread);
    assert_eq!(trace.named("Sleepy: trigger_step").len(), 10);
    assert_eq!(trace.named("Sleepy: trigger_epoch").len(), 1);
    assert!(seconds(&trace, "Sleepy: trigger_epoch") >= 0.06);
    assert_eq!(trace.named("copy the state for a checkpoint").len(), 1);
    assert!(trace.names("kernel").iter().any(|name| name.contains("Slow")), "{:?}", trace.names("kernel"));
    assert!(trace.named("read a batch").iter().any(|event| event.thread == "input"));
    let report = trace.named("wait for a batch");
    assert!(!report.is_empty() && report.iter().all(|event| event.thread == first.thread));
}

/// Trains with or without recording, and returns the weights and statistics.
fn train(dir: &Path, profiler: Option<Profiler>, trainer: impl Into<SingleCostTrainer>) -> (Vec<u8>, String) {
    let config = TrainConfig::new(Line, line(6)).logdir(dir).max_epoch(2);
    let options = SessionOptions { threads: Some(2), ..SessionOptions::default() };
    let config = profiler.into_iter().fold(config.session(options), TrainConfig::callback);
    let trained = launch_train_with_config(config, trainer).unwrap();
    let stats = std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    (trained.session.read("fc/W").unwrap().as_bytes().to_vec(), stats)
}

/// A directory is in the place of the file, as on a full disk it cannot be written.
#[test]
fn a_timeline_that_cannot_be_written_does_not_end_training() {
    let [plain, recorded] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    std::fs::create_dir(recorded.path().join("timeline-2-4.json")).unwrap();
    let expected = train(plain.path(), None, SimpleTrainer::new());
    assert_eq!(train(recorded.path(), Some(Profiler::steps(2..=4)), SimpleTrainer::new()), expected);
}

/// Recording changes no bit, and the rows show each tower.
#[test]
fn several_towers_on_the_timeline() {
    let [plain, recorded] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let expected = train(plain.path(), None, SyncMultiGpuTrainer::new(2));
    let found = train(recorded.path(), Some(Profiler::steps(2..=4)), SyncMultiGpuTrainer::new(2));
    assert_eq!(found, expected);
    // Step 3 is the last of an epoch.
    let trace = trace::read(&recorded.path().join("timeline-2-4.json"));
    for tower in 0..2 {
        for phase in ["compute", "update"] {
            let name = format!("tower {tower}: {phase}");
            // Other tests record and train in this process, too.
            assert!(trace.named(&name).len() >= 3, "{name}: {:?}", trace.names("tower"));
        }
    }
    let kernels = trace.names("kernel");
    assert!(kernels.iter().any(|name| name.contains("fc")), "{kernels:?}");
    assert!(!plain.path().join("timeline-2-4.json").exists());
}

#[test]
fn asynchronous_towers_on_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), Some(Profiler::steps(1..=6)), AsyncMultiGpuTrainer::new(2));
    let trace = trace::read(&dir.path().join("timeline-1-6.json"));
    for tower in 0..2 {
        let parts = trace.named(&format!("tower {tower}: compute on a snapshot"));
        assert!(parts.iter().any(|event| event.thread == format!("tower {tower}")), "{parts:?}");
    }
}

/// A range that begins before a run does, ends after it, or is no range.
#[test]
fn ranges_of_steps() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), Some(Profiler::steps(11..=100)), SimpleTrainer::new());
    trace::read(&dir.path().join("timeline-11-12.json"));
    for steps in [0..=3, RangeInclusive::new(5, 4)] {
        let config = TrainConfig::new(Line, line(3)).logdir(dir.path()).callback(Profiler::steps(steps));
        let e = launch_train_with_config(config, SimpleTrainer::new()).err().unwrap().to_string();
        assert!(e.contains("the first step is 1") && e.contains("timeline.rs"), "{e}");
    }
    let config = TrainConfig::new(Line, line(3)).no_logdir().callback(Profiler::steps(1..=2));
    let e = launch_train_with_config(config, SimpleTrainer::new()).err().unwrap().to_string();
    assert!(e.contains("Profiler needs a log directory"), "{e}");
}

/// A trigger records the steps after it.
#[test]
fn a_triggered_profiler_records_the_next_steps() {
    let dir = tempfile::tempdir().unwrap();
    let profiler = PeriodicTrigger::new(Profiler::new().on_request(2)).every_k_epochs(2);
    let config = TrainConfig::new(Line, line(3)).logdir(dir.path()).max_epoch(4).callback(profiler);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let trace = trace::read(&dir.path().join("timeline-7-8.json"));
    assert!(!trace.named("step 7").is_empty() && !trace.named("step 8").is_empty());
    assert_eq!(timelines(dir.path()), ["timeline-7-8.json"]);
}

fn timelines(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("timeline-")).collect()
}

/// A child whose second tower waits for `go` in its kernel of step 40, and which trains on until
/// there is a file `end`.
#[test]
fn child_that_gets_requests() {
    let Some(dir) = processes::dir() else { return };
    struct Until(PathBuf, Instant);
    impl Callback for Until {
        fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            if self.0.exists() || self.1.elapsed() > LIMIT {
                cx.stop("the test has ended");
            }
            Ok(())
        }
    }
    let model = SlowLine { slow: Slow { milliseconds: 2, waits: Some((40, dir.join("go"))) }, tower: 1 };
    let config = TrainConfig::new(model, line(6))
        .callback(Until(dir.join("end"), Instant::now()))
        .logdir(&dir)
        .steps_per_epoch(1000)
        .max_epoch(1000);
    launch_train_with_config(config, SyncMultiGpuTrainer::new(2)).unwrap();
}

/// Reads lines until one contains a text. Returns all of them.
fn read_until(lines: &mut BufReader<ChildStderr>, text: &str) -> String {
    let mut all = String::new();
    while !all.lines().last().is_some_and(|line| line.contains(text)) {
        let before = all.len();
        lines.read_line(&mut all).unwrap();
        assert!(all.len() > before, "the child ended before {text:?}: {all}");
    }
    all
}

/// Kills the child if the test fails, so that it does not wait for ever.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SIGUSR2 says which kernel a tower hangs in, and SIGUSR1 records the next steps. Training goes on
/// after both.
#[test]
#[cfg(target_os = "linux")]
fn signals_print_where_everything_is_and_record_the_next_steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = processes::command("timeline::child_that_gets_requests", dir.path());
    let mut child = Killed(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap());
    read_until(&mut lines, WAITING);
    let send = |signal: i32| {
        // SAFETY: `kill` has no requirements, and the child was not waited for yet.
        assert_eq!(unsafe { libc::kill(child.0.id() as i32, signal) }, 0);
    };
    send(libc::SIGUSR2);
    let report = read_until(&mut lines, "\"input\" is waiting");
    assert!(report.contains("training is at step 40: computing"), "{report}");
    assert!(report.contains("tower 1 is in ") && report.contains("Slow"), "{report}");
    assert!(report.contains("tests/training/timeline.rs:"), "{report}");
    assert!(report.contains("\"status\" is running"), "{report}");
    send(libc::SIGUSR1);
    std::fs::write(dir.path().join("go"), "").unwrap();
    read_until(&mut lines, "ui.perfetto.dev");
    let files = timelines(dir.path());
    assert_eq!(files.len(), 1, "{files:?}");
    let trace = trace::read(&dir.path().join(&files[0]));
    let steps = trace.events.iter().filter(|e| e.name.starts_with("step ")).count();
    assert_eq!(steps, 10, "{files:?}");
    std::fs::write(dir.path().join("end"), "").unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the child did not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}
