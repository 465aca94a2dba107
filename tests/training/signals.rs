//! Signals at awkward moments: the resumed run ends like an uninterrupted one.

use crate::models::{Line, line};
use crate::processes;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorpack::callback::{RunCx, TrainCx};
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
struct Began(u64);

impl Callback for Began {
    fn before_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
        self.0 += 1;
        Ok(())
    }
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.put_scalar("began", self.0 as f64);
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
        .callback(Began::default())
        .callback(LongTrigger(trigger, flag))
        .logdir(dir)
        .steps_per_epoch(3)
        .max_epoch(3);
    launch_train_with_config(config, SimpleTrainer::new())
}

fn left(trained: &Trained, dir: &Path) -> (HostTensor, String) {
    let stats = std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    (trained.session.read("fc/W").unwrap(), stats)
}

/// Runs a child that a signal terminates, then resumes. Checks that the results equal those of an
/// uninterrupted run, and returns the output of the child.
fn assert_same_end(child: &str) -> String {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let undisturbed = train(whole.path(), None, 0).unwrap();
    let output = processes::alone(child, parts.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    let resumed = train(parts.path(), None, 0).unwrap();
    assert_eq!(left(&resumed, parts.path()), left(&undisturbed, whole.path()));
    text
}

#[test]
fn child_that_waits() {
    if let Some(dir) = processes::dir() {
        panic!("it went on: {:?}", train(&dir, Some(4), 0).map(|t| t.ended));
    }
}

/// The step has not started: the run is saved in the state before it, in the middle of the epoch.
#[test]
fn while_a_step_waits_for_data() {
    let text = assert_same_end("signals::child_that_waits");
    assert!(text.contains("saving") && text.contains("step-0000000004"), "{text}");
}

#[test]
fn child_in_a_long_trigger() {
    if let Some(dir) = processes::dir() {
        panic!("it went on: {:?}", train(&dir, None, 5).map(|t| t.ended));
    }
}

/// The step has started and cannot finish: the last checkpoint stands.
#[test]
fn while_a_step_trigger_runs() {
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
        panic!("it went on: {:?}", two_runs(&dir, Some(4)));
    }
}

/// A plain run may have changed variables, so the step counts as started.
#[test]
fn between_two_runs_of_a_step() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let undisturbed = two_runs(whole.path(), None).unwrap();
    assert_eq!(undisturbed.0, 9.0);
    let output = processes::alone("signals::child_after_a_plain_run", parts.path());
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", processes::text(&output));
    assert_eq!(two_runs(parts.path(), None).unwrap(), undisturbed);
}
