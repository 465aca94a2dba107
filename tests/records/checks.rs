//! Checks before training: a dry run, a few batches learned by heart, learning rates.

use super::{Line, line};
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{LearningRateFinder, OverfitCheck, TrainCx};
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::train::Ended;

fn train(config: TrainConfig) -> Result<tensorpack::train::Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

/// Counts the steps.
struct Steps(Arc<Mutex<u64>>);

impl Callback for Steps {
    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() += 1000;
        Ok(())
    }
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() += 1;
        Ok(())
    }
}

#[test]
fn a_dry_run_trains_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let logdir = dir.path().join("run");
    let steps = Arc::new(Mutex::new(0));
    let config = || {
        let config = TrainConfig::new(Line, line(3)).callback(ModelSaver::new());
        config.callback(Steps(steps.clone())).logdir(&logdir).max_epoch(2)
    };
    let validation = InferenceRunner::new(line(1), [ScalarStats::new("distance")]);
    let checked = train(config().callback(validation).dry_run()).unwrap();
    assert!(matches!(&checked.ended, Ended::Stopped(why) if why.contains("dry")), "{:?}", checked.ended);
    assert_eq!((checked.session.run_index().unwrap(), *steps.lock().unwrap()), (0, 0));
    assert!(!logdir.exists());
    // It leaves an existing run as it is, and does not resume it.
    train(config()).unwrap();
    let files = || {
        let entries = std::fs::read_dir(&logdir).unwrap().map(|e| e.unwrap());
        // All tests of this process log to the file that was opened last.
        let entries = entries.filter(|e| e.file_name() != "log.log");
        let mut files: Vec<_> = entries.map(|e| (e.file_name(), e.metadata().unwrap().len())).collect();
        files.sort();
        files
    };
    let before = files();
    train(config().dry_run().fresh()).unwrap();
    assert_eq!(files(), before);
}

#[test]
fn a_dry_run_finds_what_is_wrong() {
    let dry = |config: TrainConfig| train(config.no_logdir().dry_run()).err().expect("an error");
    // A callback.
    let e = dry(TrainConfig::new(Line, line(3)).callback(EarlyStopping::max("accuracy")));
    assert!(e.message().contains("accuracy"), "{e}");
    // The first batch: it cannot be read, or does not fit the model.
    let broken = FromFn::new(4, |_| Err::<Vec<HostTensor>, _>(Error::argument("no such file")));
    let e = dry(TrainConfig::new(Line, broken));
    assert!(e.to_string().contains("no such file"), "{e}");
    let wrong = FromFn::new(4, |_| {
        Ok(vec![HostTensor::zeros(DType::F32, [2, 4])?, HostTensor::zeros(DType::F32, [2, 1])?])
    });
    let e = dry(TrainConfig::new(Line, wrong));
    assert!(e.to_string().contains("[2, 4]"), "{e}");
    // The memory.
    let small = SessionOptions { memory_limit: Some(64), ..SessionOptions::default() };
    let e = dry(TrainConfig::new(Line, line(3)).session(small));
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
}

#[test]
fn a_model_that_learns_a_few_batches_passes() {
    let data = line(50).take(2).cache();
    let config = TrainConfig::new(Line, data).steps_per_epoch(100).max_epoch(10).no_logdir();
    let trained = train(config.callback(OverfitCheck::new(2))).unwrap();
    assert!(
        matches!(&trained.ended, Ended::Stopped(why) if why.contains("learned 2")),
        "{:?}",
        trained.ended
    );
}

#[test]
fn a_model_that_does_not_learn_is_an_error() {
    let schedule = ScheduledHyperParamSetter::new("learning_rate", [(0, 1e-9)]);
    let config = TrainConfig::new(Line, line(2)).steps_per_epoch(20).max_epoch(1).no_logdir();
    let e = train(config.callback(schedule).callback(OverfitCheck::new(2))).err().expect("an error");
    assert!(e.to_string().contains("did not learn 2") && e.to_string().contains("20 steps"), "{e}");
}

/// Two means are compared, each over all batches.
#[test]
fn too_few_steps_to_see_whether_a_model_learns() {
    for steps in [3, 4, 7] {
        let config = TrainConfig::new(Line, line(4)).steps_per_epoch(steps).max_epoch(1).no_logdir();
        let e = train(config.callback(OverfitCheck::new(4))).err().expect("an error");
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        assert!(e.message().contains(&format!("{steps} steps")) && e.to_string().contains("8 steps"), "{e}");
        assert!(!e.to_string().contains("NaN"), "{e}");
    }
}

/// Keeps the learning rate of every step.
struct Rates(Arc<Mutex<Vec<f64>>>);

impl Callback for Rates {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.0.lock().unwrap().push(cx.session().read("learning_rate")?.to_scalar()?);
        Ok(())
    }
}

#[test]
fn the_learning_rate_grows_until_the_cost_does() {
    let rates = Arc::new(Mutex::new(Vec::new()));
    let config = TrainConfig::new(Line, line(4)).no_logdir().max_epoch(1000);
    let finder = LearningRateFinder::new().range(1e-4, 1e3, 80);
    let trained = train(config.callback(Rates(rates.clone())).callback(finder)).unwrap();
    assert!(matches!(&trained.ended, Ended::Stopped(why) if why.contains("grows")), "{:?}", trained.ended);
    let rates = rates.lock().unwrap();
    assert!(rates.len() > 20 && rates.len() < 80, "{rates:?}");
    assert!((rates[0] - 1e-4).abs() < 1e-9, "{rates:?}");
    let factor = 1e7f64.powf(1.0 / 79.0);
    assert!(rates.windows(2).all(|w| (w[1] / w[0] - factor).abs() < 1e-4), "{rates:?}");
    let e =
        train(TrainConfig::new(Line, line(1)).no_logdir().callback(LearningRateFinder::new().param("rate")));
    assert!(e.err().expect("an error").to_string().contains("learning_rate"));
}
