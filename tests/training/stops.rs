//! Training that a callback stops, and checkpoints requested in every hook.

use crate::life_cycle::Recorder;
use crate::models::{Line, line};
use crate::processes;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use tensorpack::callback::TrainCx;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::{Ended, Trained};

fn config(dir: &Path, max_epoch: u64) -> TrainConfig {
    TrainConfig::new(Line, line(2)).logdir(dir).max_epoch(max_epoch)
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

fn weights(trained: &Trained) -> HostTensor {
    trained.session.read("fc/W").unwrap()
}

fn uninterrupted(max_epoch: u64) -> HostTensor {
    weights(&train(config(tempfile::tempdir().unwrap().path(), max_epoch)).unwrap())
}

fn stopping_at(at: &'static str) -> Recorder {
    Recorder { stop_at: Some(at), ..Recorder::default() }
}

/// No callback requests a checkpoint here: the stop itself saves.
#[test]
fn a_stop_saves_and_the_run_stays_stopped() {
    for (at, step) in [
        ("before_train", 0),
        ("before_epoch 1", 0),
        ("after_run 1 0", 1),
        ("trigger_step 2 0", 3),
        ("trigger 1", 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let first = train(config(dir.path(), 2).callback(stopping_at(at))).unwrap();
        assert!(matches!(&first.ended, Ended::Stopped(_)), "{at}: {:?}", first.ended);
        // The same command again: nothing runs, and the weights are those of the stop.
        let again = stopping_at(at);
        let second = train(config(dir.path(), 2).callback(again.clone())).unwrap();
        assert_eq!((&second.ended, again.take()), (&first.ended, vec![]), "{at}");
        assert_eq!(weights(&second), weights(&first), "{at}");
        // A longer run continues from there, to the weights of one that was never stopped.
        let longer = Recorder::default();
        let third = train(config(dir.path(), 3).callback(longer.clone())).unwrap();
        assert_eq!(third.ended, Ended::Finished, "{at}");
        let steps = longer.take().iter().filter(|call| call.starts_with("trigger_step")).count();
        assert_eq!(steps, 6 - step, "{at}");
        assert_eq!(weights(&third), uninterrupted(3), "{at}");
    }
}

#[test]
fn a_stopped_run_continues_if_the_criterion_changed() {
    let stop = |patience| EarlyStopping::min("cost").min_delta(1e9).patience(patience);
    let dir = tempfile::tempdir().unwrap();
    let run = |stop: EarlyStopping| train(config(dir.path(), 6).callback(stop)).unwrap();
    let first = run(stop(0));
    assert!(matches!(&first.ended, Ended::Stopped(_)), "{:?}", first.ended);
    assert_eq!(run(stop(0)).ended, first.ended);
    let patient = run(stop(100));
    assert_eq!(patient.ended, Ended::Finished);
    assert_eq!(weights(&patient), uninterrupted(6));
    // A wrapper forwards the criterion.
    let dir = tempfile::tempdir().unwrap();
    let run = |stop| {
        train(config(dir.path(), 6).callback(PeriodicTrigger::new(stop).every_k_epochs(1))).unwrap().ended
    };
    assert!(matches!(run(stop(0)), Ended::Stopped(_)));
    assert_eq!(run(stop(100)), Ended::Finished);
}

/// Stops in the last step of the first epoch, and receives a signal in the epoch boundary after it.
struct StoppedThenInterrupted;

impl Callback for StoppedThenInterrupted {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == 2 {
            cx.stop("two steps are enough");
        }
        Ok(())
    }
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.interrupt().set(libc::SIGTERM);
        cx.check_interrupt()
    }
}

#[test]
fn child() {
    if let Some(dir) = processes::dir() {
        let ended = train(config(&dir, 2).callback(StoppedThenInterrupted)).map(|t| t.ended);
        panic!("training went on: {ended:?}");
    }
}

/// The end of that epoch is still to be done, and then the run is stopped.
#[test]
fn a_stopped_run_completes_its_epoch_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("stops::child", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", processes::text(&output));
    let recorder = Recorder::default();
    let trained = train(config(dir.path(), 2).callback(recorder.clone())).unwrap();
    assert_eq!(trained.ended, Ended::Stopped("two steps are enough".into()));
    let calls = ["before_train 1 1 2", "after_epoch 1 1 2", "trigger 1 1 2", "after_train 1 1 2"];
    assert_eq!(recorder.take(), calls);
    let again = train(config(dir.path(), 2).callback(recorder.clone())).unwrap();
    assert_eq!((again.ended, recorder.take()), (trained.ended, vec![]));
}

/// Requests a checkpoint in one hook.
struct SaveIn {
    hook: &'static str,
    epoch: u64,
    fail_after_train: bool,
}

impl SaveIn {
    fn new(hook: &'static str, epoch: u64) -> SaveIn {
        SaveIn { hook, epoch, fail_after_train: false }
    }

    fn called(&self, hook: &str, cx: &mut TrainCx<'_>) -> Result<()> {
        if hook == self.hook && cx.epoch_num == self.epoch && !cx.resumed() {
            cx.tag_save("requested");
        }
        Ok(())
    }
}

impl Callback for SaveIn {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.called("before_train", cx)
    }
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.called("before_epoch", cx)
    }
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.called("after_train", cx)?;
        if self.fail_after_train { Err(Error::argument("failed in after_train")) } else { Ok(()) }
    }
}

/// Returns the names of the checkpoints in a run directory.
fn checkpoints(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir.join("checkpoints")) else { return Vec::new() };
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = names.filter(|n| n.starts_with("step")).collect();
    steps.sort();
    steps
}

/// Training fails in the first step after the hook, so only what was written before it is there.
#[test]
fn a_request_before_training_or_an_epoch_is_written_at_once() {
    for (hook, epoch, fail_at, step) in [
        ("before_train", 0, "before_epoch 1", 0),
        ("before_epoch", 1, "before_run 1 0", 0),
        ("before_epoch", 2, "before_run 2 0", 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let failing = Recorder { fail_at: Some(fail_at), ..Recorder::default() };
        let failed = train(config(dir.path(), 2).callback(failing).callback(SaveIn::new(hook, epoch)));
        assert!(failed.is_err(), "{hook}");
        assert_eq!(checkpoints(dir.path()).len(), 1, "{hook} {epoch}");
        let recorder = Recorder::default();
        let trained = train(config(dir.path(), 2).callback(recorder.clone())).unwrap();
        let steps = recorder.take().iter().filter(|call| call.starts_with("trigger_step")).count();
        assert_eq!(steps, 4 - step, "{hook} {epoch}");
        assert_eq!(weights(&trained), uninterrupted(2), "{hook} {epoch}");
    }
}

#[test]
fn a_request_after_training_is_written() {
    for (at, ended) in
        [(None, Ended::Finished), (Some("trigger_step 2 0"), Ended::Stopped("trigger_step".into()))]
    {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder { stop_at: at, ..Recorder::default() };
        let first =
            train(config(dir.path(), 2).callback(recorder.clone()).callback(SaveIn::new("after_train", 2)))
                .unwrap();
        assert_eq!(first.ended, ended);
        recorder.take();
        // The checkpoint is that of a complete run.
        let again = train(config(dir.path(), 2).callback(recorder.clone())).unwrap();
        assert_eq!((&again.ended, recorder.take()), (&first.ended, vec![]));
        assert_eq!(weights(&again), weights(&first));
        assert!(dir.path().join("checkpoints/requested").exists(), "{:?}", checkpoints(dir.path()));
    }
}

/// After a failed step there is no state to save. The run's own error is reported.
#[test]
fn a_request_after_failed_training_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let failing = Recorder { fail_at: Some("after_run 1 1"), ..Recorder::default() };
    let saver = SaveIn::new("after_train", 1);
    let e = train(config(dir.path(), 2).callback(failing).callback(saver)).err().unwrap();
    assert!(e.message().contains("failed in after_run"), "{e}");
    assert_eq!(checkpoints(dir.path()), Vec::<String>::new());
    // Nor if another callback fails in the same hook.
    let saver = SaveIn { fail_after_train: true, ..SaveIn::new("after_train", 2) };
    let e = train(config(dir.path(), 2).callback(saver)).err().unwrap();
    assert!(e.message().contains("failed in after_train"), "{e}");
    assert_eq!(checkpoints(dir.path()), Vec::<String>::new());
}

/// [`Line`] with gradients accumulated over three steps.
#[derive(Clone)]
struct Accumulated;

impl ModelDesc for Accumulated {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Accumulate::new(Momentum::new(0.05, 0.9), 3).boxed()
    }
}

/// Stops or saves between two updates: the checkpoint holds the gradients accumulated so far.
#[test]
fn accumulated_gradients_survive_a_stop_and_a_failure() {
    let config =
        |dir: &Path, max_epoch| TrainConfig::new(Accumulated, line(4)).logdir(dir).max_epoch(max_epoch);
    let variables = |trained: &Trained| {
        let names = trained.session.graph().variables().iter().map(|v| v.name.clone()).collect::<Vec<_>>();
        names.into_iter().map(|n| (trained.session.read(&n).unwrap(), n)).collect::<Vec<_>>()
    };
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = train(config(whole.path(), 3)).unwrap();
    // Step 5 of 12: one gradient of the second update is there, and one is missing.
    let dir = tempfile::tempdir().unwrap();
    let stopped = train(config(dir.path(), 2).callback(stopping_at("trigger_step 2 0"))).unwrap();
    let count = stopped.session.read("accumulated_steps").unwrap();
    assert_eq!(count.to_scalar().unwrap(), 2.0);
    let rest = Recorder::default();
    let extended = train(config(dir.path(), 3).callback(rest.clone())).unwrap();
    assert_eq!(rest.take().iter().filter(|call| call.starts_with("trigger_step")).count(), 7);
    assert_eq!(variables(&extended), variables(&undisturbed));
    let dir = tempfile::tempdir().unwrap();
    let failing = Recorder { fail_at: Some("before_run 2 1"), ..Recorder::default() };
    let save = crate::resume::SaveAfter(5);
    assert!(train(config(dir.path(), 3).callback(failing).callback(save)).is_err());
    assert_eq!(variables(&train(config(dir.path(), 3)).unwrap()), variables(&undisturbed));
}
