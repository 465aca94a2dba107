//! Signals at awkward moments: the resumed run ends like an uninterrupted one.

use crate::models::{Line, line};
use crate::processes;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorpack::callback::{GraphCx, RunCx, SendStat, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::graph::Fetch;
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::prelude::*;
use tensorpack::runtime::Interrupt;
use tensorpack::train::{StepCx, Trained, Trainer};

/// Exposes the flag that a signal sets.
#[derive(Clone, Default)]
struct Flag(Arc<Mutex<Option<Interrupt>>>);

impl Flag {
    fn set(&self) {
        self.0.lock().unwrap().as_ref().expect("training has begun").set(libc::SIGTERM);
    }
}

impl Callback for Flag {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() = Some(cx.interrupt());
        Ok(())
    }
}

/// Counts started runs, and reports the count after each epoch.
#[derive(Default)]
struct CountRuns(u64);

impl Callback for CountRuns {
    fn before_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
        self.0 += 1;
        Ok(())
    }
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.put_scalar("runs_started", self.0 as f64);
        Ok(())
    }
    fn state(&self) -> serde_json::Value {
        self.0.into()
    }
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.0 = state.as_u64().expect("a count");
        Ok(())
    }
}

/// Returns batches; number `at` is slow to read, so that a signal arrives in the meantime.
fn slow_at(at: Option<u64>, flag: Flag) -> impl DataFlow {
    let read = AtomicU64::new(0);
    line(4).map(move |sample| {
        if Some(read.fetch_add(1, Ordering::Relaxed)) == at {
            flag.set();
            std::thread::sleep(Duration::from_millis(400));
        }
        Ok(sample)
    })
}

/// Sets the interrupt flag in `trigger_step` of this step, and returns its error.
struct LongTrigger(u64, Flag);

impl Callback for LongTrigger {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.0 {
            self.1.set();
        }
        cx.check_interrupt()
    }
}

fn train(dir: &Path, slow: Option<u64>, trigger: u64) -> Result<Trained> {
    let flag = Flag::default();
    let config = TrainConfig::new(Line, slow_at(slow, flag.clone()))
        .callback(ModelSaver::new())
        .callback(flag.clone())
        .callback(CountRuns::default())
        .callback(LongTrigger(trigger, flag))
        .logdir(dir)
        .steps_per_epoch(3)
        .max_epoch(3);
    launch_train_with_config(config, SimpleTrainer::new())
}

fn results(trained: &Trained, dir: &Path) -> (HostTensor, String) {
    let stats = std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    (trained.session.read("fc/W").unwrap(), stats)
}

/// Runs a child that SIGTERM terminates, then resumes. Checks that the results equal those of an
/// uninterrupted run, and returns the output of the child.
fn assert_same_end(child: &str) -> String {
    assert_same_end_after(libc::SIGTERM, child, |dir| train(dir, None, 0))
}

/// Like [`assert_same_end`], for any signal and any training.
fn assert_same_end_after(signal: i32, child: &str, train: impl Fn(&Path) -> Result<Trained>) -> String {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let undisturbed = train(whole.path()).unwrap();
    let output = processes::alone(child, parts.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(signal), "{text}");
    let resumed = train(parts.path()).unwrap();
    assert_eq!(results(&resumed, parts.path()), results(&undisturbed, whole.path()));
    text
}

#[test]
fn child_that_waits() {
    if let Some(dir) = processes::dir() {
        panic!("training continued: {:?}", train(&dir, Some(4), 0).map(|t| t.ended));
    }
}

/// The step has not started: the run is saved in the state before it, in the middle of the epoch.
#[test]
fn a_signal_while_a_step_waits_for_data_saves_the_state_before_it() {
    let text = assert_same_end("signals::child_that_waits");
    assert!(text.contains("saving") && text.contains("step-0000000004"), "{text}");
}

#[test]
fn child_in_a_long_trigger() {
    if let Some(dir) = processes::dir() {
        panic!("training continued: {:?}", train(&dir, None, 5).map(|t| t.ended));
    }
}

/// The step has started and cannot finish: the last checkpoint is kept.
#[test]
fn a_signal_in_a_step_trigger_keeps_the_last_checkpoint() {
    let text = assert_same_end("signals::child_in_a_long_trigger");
    assert!(text.contains("in the middle of a step"), "{text}");
    assert!(!text.contains("step-0000000005"), "{text}");
}

/// Each step updates `ticks` in a plain run, then waits for a batch.
fn two_runs(dir: &Path, slow: Option<u64>) -> Result<(f64, f64)> {
    let flag = Flag::default();
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let mut input = FeedInput::new(slow_at(slow, flag.clone()));
    let x = input.tensors(t, &Line.inputs())?.remove(0);
    let counter = |name: &str| t.variable(VariableSpec::new(name, []).init(Init::zeros()).non_trainable());
    let tick = Fetch::from(&counter("ticks").update(|n| n + 1.0));
    let learn = Fetch::from(&counter("sum").update(|s| s + x.sum()));
    let config = RunConfig::new().callback(ModelSaver::new()).callback(flag).logdir(dir);
    let step = |cx: &mut StepCx<'_>| {
        cx.run_plain(&[&tick], &[])?;
        cx.run(&learn).map(|_| ())
    };
    let trainer = Trainer::new(&graph).input(input.boxed());
    let trained = trainer.train_with_defaults(config.steps_per_epoch(3).max_epoch(3), step)?;
    let read = |name: &str| trained.session.read(name)?.to_scalar();
    Ok((read("ticks")?, read("sum")?))
}

#[test]
fn child_after_a_plain_run() {
    if let Some(dir) = processes::dir() {
        panic!("training continued: {:?}", two_runs(&dir, Some(4)));
    }
}

/// A plain run may have changed variables, so the step counts as started.
#[test]
fn a_signal_between_two_runs_of_a_step_keeps_the_last_checkpoint() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let undisturbed = two_runs(whole.path(), None).unwrap();
    assert_eq!(undisturbed.0, 9.0);
    let output = processes::alone("signals::child_after_a_plain_run", parts.path());
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", processes::text(&output));
    assert_eq!(two_runs(parts.path(), None).unwrap(), undisturbed);
}

/// A hook, and the signals that are sent to this process when it first runs.
#[derive(Clone, Copy)]
struct RaiseSignals(&'static str, &'static [i32]);

impl RaiseSignals {
    fn at(&mut self, hook: &str) {
        if self.0 == hook {
            // SAFETY: `raise` has no requirements; an unhandled signal ends this child process.
            std::mem::take(&mut self.1)
                .iter()
                .for_each(|signal| assert_eq!(unsafe { libc::raise(*signal) }, 0));
        }
    }
}

impl Callback for RaiseSignals {
    fn setup_graph(&mut self, _: &mut GraphCx<'_>) -> Result<()> {
        self.at("setup_graph");
        Ok(())
    }
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.at("before_train");
        cx.check_interrupt()
    }
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.at("before_epoch");
        cx.check_interrupt()
    }
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.at("trigger_step");
        Ok(())
    }
}

/// Changes a variable when training starts, but not when it resumes.
struct StartsAtSeven;

impl Callback for StartsAtSeven {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        match cx.resumed() {
            true => Ok(()),
            false => cx.session().write("fc/b", &HostTensor::new([1], vec![7f32])?),
        }
    }
}

const NO_SIGNAL: RaiseSignals = RaiseSignals("", &[]);

fn train_with(dir: &Path, sends: RaiseSignals) -> Result<Trained> {
    let config = TrainConfig::new(Line, line(4))
        .callback(ModelSaver::new())
        .callback(StartsAtSeven)
        .callback(CountRuns::default())
        .callback(sends)
        .logdir(dir)
        .steps_per_epoch(3)
        .max_epoch(2);
    launch_train_with_config(config, SimpleTrainer::new())
}

/// Gives a signal this disposition, whatever the parent process chose.
fn set_disposition(signal: i32, disposition: libc::sighandler_t) {
    // SAFETY: the disposition is `SIG_DFL`, `SIG_IGN` or a function that only stores to an atomic.
    assert_ne!(unsafe { libc::signal(signal, disposition) }, libc::SIG_ERR);
}

/// Trains in a child process that a signal must end: it panics if training returns.
fn must_not_finish(sends: RaiseSignals) {
    if let Some(dir) = processes::dir() {
        sends.1.iter().for_each(|signal| set_disposition(*signal, libc::SIG_DFL));
        panic!("training continued: {:?}", train_with(&dir, sends).map(|t| t.ended));
    }
}

#[test]
fn child_that_hangs_up() {
    must_not_finish(RaiseSignals("trigger_step", &[libc::SIGHUP]));
}

#[test]
fn sighup_saves() {
    let child = "signals::child_that_hangs_up";
    let text = assert_same_end_after(libc::SIGHUP, child, |dir| train_with(dir, NO_SIGNAL));
    assert!(text.contains("saving") && text.contains("step-0000000001"), "{text}");
}

#[test]
fn child_under_nohup() {
    if let Some(dir) = processes::dir() {
        set_disposition(libc::SIGHUP, libc::SIG_IGN);
        let trained = train_with(&dir, RaiseSignals("trigger_step", &[libc::SIGHUP])).unwrap();
        assert_eq!(trained.ended, tensorpack::train::Ended::Finished);
    }
}

#[test]
fn an_ignored_sighup_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("signals::child_under_nohup", dir.path());
    assert!(output.status.success(), "{}", processes::text(&output));
}

#[test]
fn child_that_gets_two_signals() {
    must_not_finish(RaiseSignals("trigger_step", &[libc::SIGINT, libc::SIGTERM]));
}

/// The process does not save: it ends by the second signal.
#[test]
fn a_second_signal_ends_the_process_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("signals::child_that_gets_two_signals", dir.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    assert!(!text.contains("saving"), "{text}");
}

#[test]
fn child_in_setup_graph() {
    must_not_finish(RaiseSignals("setup_graph", &[libc::SIGTERM]));
}

#[test]
fn child_in_before_train() {
    must_not_finish(RaiseSignals("before_train", &[libc::SIGTERM]));
}

#[test]
fn child_in_before_epoch() {
    must_not_finish(RaiseSignals("before_epoch", &[libc::SIGTERM]));
}

/// A run that has not done a step is saved, too, and starts like any other when it resumes.
#[test]
fn a_signal_before_the_first_step_saves() {
    for child in ["child_in_setup_graph", "child_in_before_train", "child_in_before_epoch"] {
        let child = format!("signals::{child}");
        let text = assert_same_end_after(libc::SIGTERM, &child, |dir| train_with(dir, NO_SIGNAL));
        assert!(text.contains("saving") && text.contains("step-0000000000"), "{child}: {text}");
    }
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn raise(signal: i32) {
    // SAFETY: `raise` has no requirements.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// The signal that a child sends itself after training.
const SIGNAL: &str = "TENSORPACK_TEST_SIGNAL";

/// The signal of a child, with its default disposition, whatever the parent process chose.
fn signal_of_child() -> i32 {
    let signal = std::env::var(SIGNAL).unwrap().parse().unwrap();
    set_disposition(signal, libc::SIG_DFL);
    signal
}

/// Raises a signal that must end this process.
fn end_by(signal: i32) {
    eprintln!("all trained");
    raise(signal);
    eprintln!("still alive");
}

#[test]
fn child_that_outlives_training() {
    let Some(dir) = processes::dir() else { return };
    let signal = signal_of_child();
    train_with(&dir, NO_SIGNAL).unwrap();
    end_by(signal);
}

#[test]
fn child_with_a_handler_that_outlives_training() {
    let Some(dir) = processes::dir() else { return };
    let signal = signal_of_child();
    set_disposition(signal, count as *const () as libc::sighandler_t);
    train_with(&dir, NO_SIGNAL).unwrap();
    raise(signal);
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    set_disposition(signal, libc::SIG_DFL);
    end_by(signal);
}

#[test]
fn child_that_outlives_two_trainings() {
    let Some(dir) = processes::dir() else { return };
    let signal = signal_of_child();
    let (started, starts) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let (one, other) = (dir.join("one"), dir.join("other"));
    let second = std::thread::spawn(move || {
        let wait = Waits(started, goes);
        let config = TrainConfig::new(Line, line(2)).callback(wait).logdir(one).max_epoch(1);
        launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
    });
    starts.recv().unwrap();
    train_with(&other, NO_SIGNAL).unwrap();
    go.send(()).unwrap();
    second.join().unwrap().unwrap();
    end_by(signal);
}

/// Reports that training has started, and waits for permission to continue.
struct Waits(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

impl Callback for Waits {
    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.0.send(()).map_err(|e| Error::argument(e.to_string()))?;
        self.1.recv().map_err(|e| Error::argument(e.to_string()))
    }
}

#[test]
fn signal_dispositions_are_restored_after_training() {
    for child in [
        "child_that_outlives_training",
        "child_with_a_handler_that_outlives_training",
        "child_that_outlives_two_trainings",
    ] {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let dir = tempfile::tempdir().unwrap();
            let mut command = processes::command(&format!("signals::{child}"), dir.path());
            let output = command.env(SIGNAL, signal.to_string()).output().unwrap();
            let text = processes::text(&output);
            assert_eq!(output.status.signal(), Some(signal), "{child}: {text}");
            assert!(text.contains("all trained") && !text.contains("still alive"), "{child}: {text}");
        }
    }
}

#[test]
fn child_that_trains_twice() {
    let Some(dir) = processes::dir() else { return };
    train_with(&dir.join("before"), NO_SIGNAL).unwrap();
    let sends = RaiseSignals("trigger_step", &[libc::SIGTERM]);
    panic!("training continued: {:?}", train_with(&dir, sends).map(|t| t.ended));
}

/// The handlers are installed again.
#[test]
fn a_signal_in_the_second_training_of_a_process_saves() {
    let child = "signals::child_that_trains_twice";
    let text = assert_same_end_after(libc::SIGTERM, child, |dir| train_with(dir, NO_SIGNAL));
    assert!(text.contains("saving") && text.contains("step-0000000001"), "{text}");
}

#[test]
fn child_with_a_handler_of_its_own() {
    let Some(dir) = processes::dir() else { return };
    extern "C" fn exit(_: i32) {
        // SAFETY: `_exit` may be called in a signal handler.
        unsafe { libc::_exit(77) }
    }
    set_disposition(libc::SIGTERM, exit as *const () as libc::sighandler_t);
    panic!(
        "training continued: {:?}",
        train_with(&dir, RaiseSignals("trigger_step", &[libc::SIGTERM])).map(|t| t.ended)
    );
}

/// The program's own handler gets the signal once the run is saved.
#[test]
fn a_handler_of_the_program_runs_after_saving() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("signals::child_with_a_handler_of_its_own", dir.path());
    let text = processes::text(&output);
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert!(text.contains("saved") && text.contains("step-0000000001"), "{text}");
}

#[test]
fn child_with_a_slow_command() {
    let Some(dir) = processes::dir() else { return };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(6));
        // SAFETY: `kill` has no requirements; the signal goes to this child process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    });
    let none: [&str; 0] = [];
    let config = TrainConfig::new(Line, line(4))
        .callback(ModelSaver::new())
        .callback(SendStat::new("sleep 30", none))
        .logdir(dir)
        .max_epoch(2);
    panic!(
        "training continued: {:?}",
        launch_train_with_config(config, SimpleTrainer::new()).map(|t| t.ended)
    );
}

/// The log names the command that training waits for, and a signal ends the wait.
#[test]
fn a_signal_while_a_command_runs_saves() {
    let dir = tempfile::tempdir().unwrap();
    let start = std::time::Instant::now();
    let output = processes::alone("signals::child_with_a_slow_command", dir.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    assert!(start.elapsed() < Duration::from_secs(25), "it took {:?}", start.elapsed());
    assert!(text.contains("waiting for `sleep 30"), "{text}");
    assert!(text.contains("saving") && dir.path().join("checkpoints/latest").exists(), "{text}");
}
