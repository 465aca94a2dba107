//! A resumed run calls the callbacks for exactly the remaining steps.

use crate::boundary_signal::InterruptedAtTheBoundary;
use crate::life_cycle::{Recorder, TWO_EPOCHS};
use crate::models::{Line, line};
use crate::processes;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use tensorpack::callback::{GraphCx, SanityValidation, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::prelude::*;
use tensorpack::train::{Ended, SingleCostTrainer, Trained};

/// Requests a checkpoint after one step.
pub(crate) struct SaveAfter(pub(crate) u64);

impl Callback for SaveAfter {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.0 {
            cx.request_save();
        }
        Ok(())
    }
}

fn config(dir: &Path, recorder: &Recorder) -> TrainConfig {
    TrainConfig::new(Line, line(2)).logdir(dir).max_epoch(2).callback(recorder.clone())
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

fn failing_at(at: &'static str) -> Recorder {
    Recorder { fail_at: Some(at), ..Recorder::default() }
}

/// Returns the weights and statistics of an uninterrupted run.
fn uninterrupted() -> (HostTensor, String) {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(config(dir.path(), &Recorder::default())).unwrap();
    results(&trained, dir.path())
}

fn results(trained: &Trained, dir: &Path) -> (HostTensor, String) {
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
    let stats = read("stats.jsonl") + &read("steps.jsonl");
    (trained.session.read("fc/W").unwrap(), stats)
}

/// `TWO_EPOCHS` from a call on, after `before_train` with the counters as they were left.
fn rest(before_train: &str, again: &[&str], from: &str) -> Vec<String> {
    let at = TWO_EPOCHS.iter().position(|call| *call == from).expect("one of the calls");
    let calls =
        std::iter::once(before_train).chain(again.iter().copied()).chain(TWO_EPOCHS[at..].iter().copied());
    calls.map(String::from).collect()
}

#[test]
fn resumes_in_the_middle_of_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let e = train(config(dir.path(), &failing_at("before_run 2 1")).callback(SaveAfter(3))).err().unwrap();
    assert!(e.message().contains("failed in before_run"), "{e}");
    let recorder = Recorder::default();
    let trained = train(config(dir.path(), &recorder)).unwrap();
    // `before_epoch` is called again, and callbacks can check `resumed`; the first step is not
    // repeated.
    assert_eq!(recorder.take(), rest("before_train 2 0 3", &["before_epoch 2 0 3"], "before_run 2 1 3"));
    assert_eq!(results(&trained, dir.path()), uninterrupted());
}

#[test]
fn resumes_between_two_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let saver = || ModelSaver::new();
    train(config(dir.path(), &failing_at("before_epoch 2")).callback(saver())).err().unwrap();
    let recorder = Recorder::default();
    let trained = train(config(dir.path(), &recorder).callback(saver())).unwrap();
    assert_eq!(recorder.take(), rest("before_train 1 1 2", &[], "before_epoch 2 1 2"));
    assert_eq!(results(&trained, dir.path()), uninterrupted());
    // A complete run calls nothing.
    let trained = train(config(dir.path(), &recorder).callback(saver())).unwrap();
    assert_eq!((trained.ended, recorder.take()), (Ended::Finished, vec![]));
}

/// A save requested in the last step of an epoch is written after the epoch boundary.
#[test]
fn resumes_after_a_save_in_the_last_step() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path(), &failing_at("before_run 2 0")).callback(SaveAfter(2))).err().unwrap();
    let recorder = Recorder::default();
    let trained = train(config(dir.path(), &recorder)).unwrap();
    assert_eq!(recorder.take(), rest("before_train 1 1 2", &[], "before_epoch 2 1 2"));
    assert_eq!(results(&trained, dir.path()), uninterrupted());
}

#[test]
fn child() {
    if let Some(dir) = processes::dir() {
        let config = config(&dir, &Recorder::default()).callback(InterruptedAtTheBoundary);
        panic!("training continued: {:?}", train(config).map(|t| t.ended));
    }
}

/// The checkpoint has the variables from before the boundary, and the resumed run repeats the
/// boundary.
#[test]
fn resumes_after_a_signal_at_the_epoch_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("resume::child", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", processes::text(&output));
    let recorder = Recorder::default();
    let trained = train(config(dir.path(), &recorder)).unwrap();
    assert_eq!(recorder.take(), rest("before_train 1 1 2", &[], "after_epoch 1 1 2"));
    assert_eq!(results(&trained, dir.path()), uninterrupted());
}

/// Tags the checkpoint of the last step of an epoch.
struct TagTheLastStep;

impl Callback for TagTheLastStep {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.last_of_epoch() {
            cx.tag_save("last-step");
        }
        Ok(())
    }
}

#[test]
fn tagging_child() {
    if let Some(dir) = processes::dir() {
        let config = config(&dir, &Recorder::default()).callback(TagTheLastStep);
        panic!("training continued: {:?}", train(config.callback(InterruptedAtTheBoundary)).map(|t| t.ended));
    }
}

/// The step that asked for the tag is not run again, so the checkpoint of the signal has it.
#[test]
fn tags_of_the_last_step_survive_a_signal_at_the_epoch_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("resume::tagging_child", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", processes::text(&output));
    let tagged = std::fs::read_to_string(dir.path().join("checkpoints/last-step")).unwrap();
    assert_eq!(tagged, std::fs::read_to_string(dir.path().join("checkpoints/latest")).unwrap());
    let trained = train(config(dir.path(), &Recorder::default())).unwrap();
    assert_eq!(results(&trained, dir.path()), uninterrupted());
    assert!(dir.path().join("checkpoints").join(tagged.trim()).is_dir());
}

/// A checkpoint stores what was consumed, not what was prefetched; the input source may change on
/// resume.
#[test]
fn prefetched_data_is_read_again() {
    let data = || {
        line(5).shuffle().map_random(|mut sample, rng| {
            sample[0].as_mut_slice::<f32>()?[0] += rng.normal() as f32;
            Ok(sample)
        })
    };
    let config = |dir: &Path| {
        TrainConfig::new(Line, data()).callback(SaveAfter(7)).steps_per_epoch(4).max_epoch(4).logdir(dir)
    };
    let whole = tempfile::tempdir().unwrap();
    let at_once = train(config(whole.path())).unwrap();
    let trainer = |queue: bool| -> SingleCostTrainer {
        if queue { QueueInputTrainer::new().into() } else { SimpleTrainer::new().into() }
    };
    for (first, second) in [(true, true), (true, false), (false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let failing = config(dir.path()).callback(failing_at("before_run 3"));
        assert!(launch_train_with_config(failing, trainer(first)).is_err());
        let resumed = launch_train_with_config(config(dir.path()), trainer(second)).unwrap();
        assert_eq!(results(&resumed, dir.path()), results(&at_once, whole.path()), "{first} then {second}");
    }
}

/// Records `resumed` in every hook.
#[derive(Clone, Default)]
struct RecordResumed(std::sync::Arc<std::sync::Mutex<Vec<(String, bool)>>>);

impl Callback for RecordResumed {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.0.lock().unwrap().push(("before_train".into(), cx.resumed()));
        Ok(())
    }
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.0.lock().unwrap().push((format!("before_epoch {}", cx.epoch_num), cx.resumed()));
        Ok(())
    }
}

/// The second epoch had started before, the third had not.
#[test]
fn hooks_see_that_the_run_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path(), &failing_at("before_run 2 1")).callback(SaveAfter(3))).err().unwrap();
    let told = RecordResumed::default();
    train(config(dir.path(), &Recorder::default()).callback(told.clone()).max_epoch(3)).unwrap();
    let right = [("before_train", true), ("before_epoch 2", true), ("before_epoch 3", false)];
    let told = told.0.lock().unwrap();
    assert_eq!(told.iter().map(|(what, resumed)| (what.as_str(), *resumed)).collect::<Vec<_>>(), right);
}

/// A stop request ends the run, not only the process.
#[test]
fn a_run_that_was_stopped_stays_stopped() {
    // After an epoch, and in the middle of one.
    for (at, save_after) in [("trigger 1", 2), ("trigger_step 2 0", 3)] {
        let dir = tempfile::tempdir().unwrap();
        let stopping = Recorder { stop_at: Some(at), ..Recorder::default() };
        let first = train(config(dir.path(), &stopping).callback(SaveAfter(save_after))).unwrap();
        let again = Recorder::default();
        let second = train(config(dir.path(), &again)).unwrap();
        assert!(matches!(&second.ended, Ended::Stopped(_)), "{at}");
        assert_eq!((&second.ended, again.take()), (&first.ended, vec![]));
        assert_eq!(results(&second, dir.path()), results(&first, dir.path()));
        // With a larger max_epoch it continues.
        let longer = train(config(dir.path(), &again).max_epoch(3)).unwrap();
        assert_eq!(longer.ended, Ended::Finished);
        assert_eq!(again.take().last().unwrap(), "after_train 3 1 6");
    }
}

/// Adds a random number to the bias before every epoch.
#[derive(Default)]
struct AddNoise(Option<Tensor>);

impl Callback for AddNoise {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.0 = Some(Random::normal(0.0, 1.0).shape(g.graph(), &[1]).named("noise"));
        Ok(())
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if let Some(noise) = self.0.as_ref().filter(|_| !cx.resumed()) {
            let drawn = cx.session().run(&[noise], &[])?.remove(0);
            cx.session().write("fc/b", &drawn)?;
        }
        Ok(())
    }
}

/// Plain runs of validation come before the one that draws the noise, in a resumed run those of the
/// sanity check, too.
#[test]
fn random_numbers_of_plain_runs_continue() {
    let epochs = |dir: &Path, n: u64| {
        let config = TrainConfig::new(Line, line(2)).logdir(dir).max_epoch(n);
        let validation = SanityValidation::new(InferenceRunner::new(line(3), [ScalarStats::new("cost")]));
        let config = config.callback(AddNoise::default()).callback(validation).callback(ModelSaver::new());
        results(&train(config).unwrap(), dir)
    };
    let (at_once, in_parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    epochs(in_parts.path(), 2);
    assert_eq!(epochs(in_parts.path(), 4), epochs(at_once.path(), 4));
}
