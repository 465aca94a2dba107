//! The order of callback hooks, and the counters they see.

use crate::models::{Line, line};
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{RunCx, TrainCx};
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::train::Ended;

type Calls = Arc<Mutex<Vec<String>>>;

/// Records every call with the counters.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) calls: Calls,
    /// The call at which to stop training, such as `trigger_step 1 0`.
    pub(crate) stop_at: Option<&'static str>,
    /// The call at which to fail.
    pub(crate) fail_at: Option<&'static str>,
}

impl Recorder {
    fn note(&self, what: &str, epoch: u64, local: i64, global: u64) -> (bool, Result<()>) {
        let call = format!("{what} {epoch} {local} {global}");
        self.calls.lock().unwrap().push(call.clone());
        let stop = self.stop_at.is_some_and(|at| call.starts_with(at));
        let fail = self.fail_at.is_some_and(|at| call.starts_with(at));
        (stop, if fail { Err(Error::argument(format!("failed in {what}"))) } else { Ok(()) })
    }

    fn record(&self, what: &str, cx: &mut TrainCx<'_>) -> Result<()> {
        let (stop, result) = self.note(what, cx.epoch_num, cx.local_step, cx.global_step);
        if stop {
            cx.stop(what);
        }
        result
    }

    fn record_run(&self, what: &str, cx: &mut RunCx<'_>) -> Result<()> {
        let (stop, result) = self.note(what, cx.epoch_num, cx.local_step, cx.global_step);
        if stop {
            cx.stop(what);
        }
        result
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Callback for Recorder {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("before_train", cx)
    }
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("before_epoch", cx)
    }
    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.record_run("before_run", cx)
    }
    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.record_run("after_run", cx)
    }
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("trigger_step", cx)
    }
    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("after_epoch", cx)
    }
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("trigger", cx)
    }
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.record("after_train", cx)
    }
}

pub(crate) fn config() -> TrainConfig {
    TrainConfig::new(Line, line(2)).no_logdir().max_epoch(2)
}

pub(crate) const TWO_EPOCHS: [&str; 20] = [
    "before_train 0 -1 0",
    "before_epoch 1 -1 0",
    "before_run 1 0 0",
    "after_run 1 0 0",
    "trigger_step 1 0 1",
    "before_run 1 1 1",
    "after_run 1 1 1",
    "trigger_step 1 1 2",
    "after_epoch 1 1 2",
    "trigger 1 1 2",
    "before_epoch 2 1 2",
    "before_run 2 0 2",
    "after_run 2 0 2",
    "trigger_step 2 0 3",
    "before_run 2 1 3",
    "after_run 2 1 3",
    "trigger_step 2 1 4",
    "after_epoch 2 1 4",
    "trigger 2 1 4",
    "after_train 2 1 4",
];

#[test]
fn callbacks_are_called_in_order_with_the_right_counters() {
    let recorder = Recorder::default();
    let trained =
        launch_train_with_config(config().callback(recorder.clone()), SimpleTrainer::new()).unwrap();
    assert_eq!(trained.ended, Ended::Finished);
    assert_eq!(recorder.take(), TWO_EPOCHS);
}

#[test]
fn a_stop_takes_effect_after_the_current_hook() {
    // The call that stops training, and the last call before `after_train`.
    let cases = [
        ("before_train", "before_epoch 1 -1 0"),
        ("before_run 1 0", "trigger_step 1 0 1"),
        ("after_run 1 1", "trigger 1 1 2"),
        ("trigger_step 1 0", "trigger_step 1 0 1"),
        ("after_epoch 1", "trigger 1 1 2"),
        ("trigger 1", "trigger 1 1 2"),
    ];
    for (at, last) in cases {
        let recorder = Recorder { stop_at: Some(at), ..Recorder::default() };
        let trained =
            launch_train_with_config(config().callback(recorder.clone()), SimpleTrainer::new()).unwrap();
        let reason = at.split(' ').next().unwrap().to_string();
        assert_eq!(trained.ended, Ended::Stopped(reason), "{at}");
        let calls = recorder.take();
        assert_eq!(calls[calls.len() - 2], last, "{at}");
        assert!(calls.last().unwrap().starts_with("after_train"), "{at}");
    }
}

#[test]
fn an_error_from_any_hook_ends_training_after_every_after_train() {
    for at in
        ["before_train", "before_epoch", "before_run", "after_run", "trigger_step", "after_epoch", "trigger "]
    {
        let failing = Recorder { fail_at: Some(at), ..Recorder::default() };
        let other = Recorder::default();
        let config = config().callback(failing.clone()).callback(other.clone());
        let e = launch_train_with_config(config, SimpleTrainer::new()).err().expect("an error");
        assert!(e.message().contains(&format!("failed in {}", at.trim())), "{at}: {e}");
        for recorder in [failing, other] {
            let calls = recorder.take();
            assert!(calls.last().is_some_and(|c| c.starts_with("after_train")), "{at}: {calls:?}");
        }
    }
}

#[test]
fn the_first_error_is_reported_when_after_train_fails_too() {
    struct Both;
    impl Callback for Both {
        fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            Err(Error::argument("the first"))
        }
        fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            Err(Error::argument("the second"))
        }
    }
    let e = launch_train_with_config(config().callback(Both), SimpleTrainer::new()).err().unwrap();
    assert!(e.message().contains("the first"), "{e}");
}

#[test]
fn an_epoch_can_have_no_steps() {
    let recorder = Recorder::default();
    let config = config().steps_per_epoch(0).max_epoch(1).callback(recorder.clone());
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let right = [
        "before_train 0 -1 0",
        "before_epoch 1 -1 0",
        "after_epoch 1 -1 0",
        "trigger 1 -1 0",
        "after_train 1 -1 0",
    ];
    assert_eq!(recorder.take(), right);
}

/// Twenty examples of the line, one per sample.
fn twenty() -> FromFn {
    FromFn::new(20, |i| Ok(vec![HostTensor::new([3], vec![i as f32; 3])?, HostTensor::new([1], vec![0f32])?]))
}

fn assert_no_batch(e: &Error) {
    assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    assert!(e.message().contains("no batch"), "{e}");
    assert!(e.to_string().contains("keep_remainder") && e.to_string().contains("batch size"), "{e}");
}

/// Without a batch there would be no step, and training would "finish" without having trained.
#[test]
fn training_data_without_a_full_batch_is_an_error() {
    let train = |flow: Arc<dyn DataFlow>, steps: Option<u64>| {
        let recorder = Recorder::default();
        let config = TrainConfig::new(Line, flow).no_logdir().max_epoch(3).callback(recorder.clone());
        let config = if let Some(steps) = steps { config.steps_per_epoch(steps) } else { config };
        (launch_train_with_config(config, SimpleTrainer::new()), recorder.take())
    };
    // Fewer samples than the batch size, and no samples at all.
    for flow in [Arc::new(twenty().batch(32)) as Arc<dyn DataFlow>, Arc::new(line(0))] {
        let (trained, calls) = train(flow, None);
        assert_no_batch(&trained.err().expect("an error"));
        assert_eq!(calls, Vec::<String>::new());
    }
    // The number of samples is known only after reading them.
    let nothing = || Arc::new(twenty().filter(|_| Ok(false)).batch(32));
    assert_no_batch(&train(nothing(), Some(2)).0.err().expect("an error"));
    // No steps, on request.
    assert_eq!(train(nothing(), Some(0)).0.unwrap().ended, Ended::Finished);
    assert_eq!(train(Arc::new(twenty().batch(32)), Some(0)).0.unwrap().ended, Ended::Finished);
    assert_eq!(train(Arc::new(twenty().batch(32).keep_remainder()), None).0.unwrap().ended, Ended::Finished);
}

#[test]
fn validation_data_without_a_full_batch_is_an_error() {
    for flow in [Arc::new(twenty().filter(|_| Ok(false)).batch(32)) as Arc<dyn DataFlow>, Arc::new(line(0))] {
        let runner = InferenceRunner::new(flow, [ScalarStats::new("cost")]);
        let e = launch_train_with_config(config().callback(runner), SimpleTrainer::new()).err().unwrap();
        assert_no_batch(&e);
        assert!(e.message().contains("InferenceTower"), "{e}");
    }
}
