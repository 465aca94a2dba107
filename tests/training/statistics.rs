//! Statistics must be produced before they are read: checked before training.

use crate::models::{Line, line};
use tensorpack::callback::SimpleMovingAverage;
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

fn config() -> TrainConfig {
    TrainConfig::new(Line, line(2)).no_logdir().max_epoch(1)
}

fn runner() -> InferenceRunner {
    InferenceRunner::new(line(1), [ScalarStats::new("cost")])
}

fn error(config: TrainConfig) -> String {
    launch_train_with_config(config, SimpleTrainer::new()).err().expect("an error").to_string()
}

#[test]
fn a_statistic_that_no_callback_produces() {
    let e = error(config().callback(runner()).callback(EarlyStopping::max("accuracy")));
    assert_mentions(&e, &["EarlyStopping(accuracy)", "\"accuracy\"", "no callback produces"]);
    assert_mentions(&e, &["statistics", "cost, validation_cost"]);
}

#[test]
fn two_inference_runners_need_different_names() {
    let e = error(config().callback(runner()).callback(runner()));
    assert!(e.contains("\"InferenceTower\"") && e.contains("tower_name"), "{e}");
    let e = error(config().callback(runner()).callback(runner().tower_name("Test")));
    assert!(e.contains("\"validation_cost\"") && e.contains("prefix"), "{e}");
    assert!(e.contains("InferenceRunner(InferenceTower)") && e.contains("InferenceRunner(Test)"), "{e}");
    // The moving average of the training cost is called "cost".
    let no_prefix = InferenceRunner::new(line(1), [ScalarStats::new("cost").prefix("")]);
    let e = error(config().callback(no_prefix));
    assert!(e.contains("\"cost\"") && e.contains("MovingAverageSummary"), "{e}");
    let e = error(config().callback(runner().with(ScalarStats::new("cost"))));
    assert!(e.contains("\"validation_cost\"") && e.contains("prefix"), "{e}");
    let test = InferenceRunner::new(line(1), [ScalarStats::new("cost").prefix("test")]).tower_name("Test");
    launch_train_with_config(config().callback(runner()).callback(test), SimpleTrainer::new()).unwrap();
}

#[test]
fn a_statistic_produced_later_in_the_list() {
    let e = error(config().callback(EarlyStopping::min("validation_cost")).callback(runner()));
    assert_mentions(&e, &["InferenceRunner(InferenceTower)", "later"]);
    assert!(e.contains("put InferenceRunner(InferenceTower) before EarlyStopping(validation_cost)"), "{e}");
}

#[test]
fn a_statistic_produced_at_a_later_moment() {
    let early = PeriodicTrigger::new(EarlyStopping::min("validation_cost")).every_k_steps(1);
    let e = error(config().callback(runner()).callback(early));
    assert_mentions(&e, &["after epochs", "after steps"]);
    let advice =
        "trigger EarlyStopping(validation_cost) after epochs, or InferenceRunner(InferenceTower) after steps";
    assert!(e.contains(advice), "{e}");
}

#[test]
fn statistics_produced_in_time() {
    let by_steps = || PeriodicTrigger::new(EarlyStopping::min("validation_cost")).every_k_steps(1);
    let runner_by_steps = PeriodicTrigger::new(runner()).every_k_steps(1);
    for config in [
        config().callback(runner()).callback(EarlyStopping::min("validation_cost")),
        // Statistics of runs are available at any position in the list: moving averages come last.
        config().callback(EarlyStopping::min("cost")),
        config().callback(EarlyStopping::min("cost/SMA")).callback(SimpleMovingAverage::new(["cost"], 1)),
        config().callback(runner_by_steps).callback(by_steps()),
    ] {
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    }
}
