//! Callbacks that are triggered or enabled periodically.

use crate::life_cycle::{Recorder, TWO_EPOCHS, config};
use tensorpack::callback::{EnableCallbackIf, PeriodicCallback};
use tensorpack::prelude::*;

/// Returns the calls of two epochs with two steps each to a recorder wrapped by `wrap`.
fn calls<C: Callback + 'static>(wrap: impl FnOnce(Recorder) -> C) -> Vec<String> {
    let recorder = Recorder::default();
    let config = config().callback(wrap(recorder.clone()));
    launch_train_with_config(config, NoOpTrainer::new()).unwrap();
    recorder.take()
}

/// All calls except triggers, plus these triggers, each after the given call.
fn with_triggers(triggers: &[(&str, &str)]) -> Vec<String> {
    let others = TWO_EPOCHS.iter().filter(|c| !c.starts_with("trigger "));
    let then = |call: &&str| triggers.iter().find(|(after, _)| after == call).map(|(_, t)| *t);
    others.flat_map(|c| std::iter::once(*c).chain(then(c))).map(String::from).collect()
}

#[test]
fn a_trigger_every_few_steps() {
    let right = with_triggers(&[("trigger_step 2 0 3", "trigger 2 0 3")]);
    assert_eq!(calls(|r| PeriodicTrigger::new(r).every_k_steps(3)), right);
}

#[test]
fn a_trigger_every_few_epochs_and_at_the_start() {
    let right =
        with_triggers(&[("before_train 0 -1 0", "trigger 0 -1 0"), ("after_epoch 2 1 4", "trigger 2 1 4")]);
    assert_eq!(calls(|r| PeriodicTrigger::new(r).every_k_epochs(2).at_start()), right);
}

#[test]
fn triggers_by_steps_and_by_epochs_combine() {
    let calls = calls(|r| PeriodicTrigger::new(r).every_k_steps(4).every_k_epochs(2));
    assert_eq!(calls.iter().filter(|c| *c == "trigger 2 1 4").count(), 2);
}

#[test]
fn a_callback_every_few_steps() {
    let begin_or_end = |c: &str| c.starts_with("before_train") || c.starts_with("after_train");
    let even = |c: &str| c.ends_with(['0', '2', '4', '6', '8']);
    let right: Vec<&str> = TWO_EPOCHS.into_iter().filter(|c| begin_or_end(c) || even(c)).collect();
    assert_eq!(calls(|r| PeriodicCallback::new(r).every_k_steps(2)), right);
}

#[test]
fn a_callback_every_few_epochs_sees_the_last_step() {
    let calls = calls(|r| PeriodicCallback::new(r).every_k_epochs(3));
    let end =
        ["before_run 2 1 3", "after_run 2 1 3", "trigger_step 2 1 4", "after_epoch 2 1 4", "trigger 2 1 4"];
    assert_eq!(calls[calls.len() - 6..calls.len() - 1], end);
    assert!(!calls.iter().any(|c| c.contains("_run 1") || c.contains("_run 2 0")), "{calls:?}");
}

#[test]
fn a_condition_is_evaluated_once_per_run() {
    // So that every `before_run` has its `after_run`.
    let asked = std::cell::Cell::new(false);
    let calls = calls(|r| EnableCallbackIf::new(r, move |_| !asked.replace(!asked.get())));
    let begun = calls.iter().filter(|c| c.starts_with("before_run"));
    let ended = calls.iter().filter(|c| c.starts_with("after_run"));
    let place = |c: &String| c.split_once(' ').unwrap().1.to_string();
    let begun: Vec<String> = begun.map(place).collect();
    assert!(!begun.is_empty());
    assert_eq!(ended.map(place).collect::<Vec<_>>(), begun);
}

#[test]
fn a_missing_period_is_an_error() {
    let launch = |c: Box<dyn FnOnce(TrainConfig) -> TrainConfig>| {
        launch_train_with_config(c(config()), NoOpTrainer::new()).err().expect("an error").to_string()
    };
    let e = launch(Box::new(|c| c.callback(PeriodicTrigger::new(Recorder::default()))));
    assert!(e.contains("PeriodicTrigger of Recorder"), "{e}");
    assert!(e.contains("at_start()"), "{e}");
    let e = launch(Box::new(|c| c.callback(PeriodicCallback::new(Recorder::default()))));
    assert!(e.contains("PeriodicCallback of Recorder"), "{e}");
    let e = launch(Box::new(|c| c.callback(PeriodicTrigger::new(Recorder::default()).every_k_steps(0))));
    assert!(e.contains("0 steps"), "{e}");
}
