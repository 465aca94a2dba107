//! Hyper-parameters that change while training runs.

use crate::models::{Knobs, line};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tensorpack::callback::{
    HumanHyperParamSetter, HyperParam, HyperParamSetterWithFunc, StatMonitorParamSetter, TrainCx,
};
use tensorpack::prelude::*;
use tensorpack::train::{Ended, Trained};
use tensorpack_testing::assert_mentions;

fn config() -> TrainConfig {
    TrainConfig::new(Knobs, line(1)).no_logdir()
}

fn train(config: TrainConfig) -> Trained {
    launch_train_with_config(config, NoOpTrainer::new()).unwrap()
}

fn error(config: TrainConfig) -> String {
    launch_train_with_config(config, NoOpTrainer::new()).err().expect("an error").to_string()
}

/// A value outside the graph that records the step and value of every change.
#[derive(Clone)]
struct Attribute {
    value: Rc<Cell<f64>>,
    now: Rc<Cell<u64>>,
    sets: Rc<RefCell<Vec<(u64, f64)>>>,
}

impl Attribute {
    fn new(value: f64) -> Attribute {
        Attribute { value: Rc::new(value.into()), now: Rc::default(), sets: Rc::default() }
    }

    fn param(&self) -> HyperParam {
        let (read, written) = (self.clone(), self.clone());
        HyperParam::attribute(
            "attribute",
            move || read.value.get(),
            move |v| {
                written.value.set(v);
                written.sets.borrow_mut().push((written.now.get(), v));
            },
        )
    }
}

/// Tracks the current step. Comes before the setter in the list.
impl Callback for Attribute {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.now.set(cx.global_step);
        Ok(())
    }
}

/// Returns the steps and values that a schedule sets, with one step per epoch.
fn sets(
    epochs: std::ops::RangeInclusive<u64>,
    make: impl FnOnce(HyperParam) -> ScheduledHyperParamSetter,
) -> Vec<(u64, f64)> {
    let attribute = Attribute::new(1.0);
    let setter = make(attribute.param());
    let config = config().callback(attribute.clone()).callback(setter);
    train(config.starting_epoch(*epochs.start()).max_epoch(*epochs.end()));
    attribute.sets.take()
}

const POINTS: [(u64, f64); 3] = [(10, 0.1), (30, 0.5), (20, 0.2)];

#[test]
fn a_schedule_sets_only_at_its_points() {
    let set = sets(1..=50, |p| ScheduledHyperParamSetter::new(p, POINTS));
    assert_eq!(set, [(10, 0.1), (20, 0.2), (30, 0.5)]);
}

#[test]
fn a_late_start_uses_the_scheduled_value() {
    assert_eq!(sets(90..=92, |p| ScheduledHyperParamSetter::new(p, POINTS)), [(0, 0.5)]);
    assert_eq!(sets(16..=16, |p| ScheduledHyperParamSetter::new(p, POINTS)), [(0, 0.1)]);
    assert_eq!(sets(90..=92, |p| ScheduledHyperParamSetter::new(p, POINTS).no_set_at_beginning()), []);
    // Interpolated between two points.
    let linear = sets(16..=17, |p| ScheduledHyperParamSetter::new(p, POINTS).linear());
    let right = [(0, 0.15), (1, 0.16), (2, 0.17)];
    assert_eq!(linear.len(), right.len());
    assert!(linear.iter().zip(right).all(|(l, r)| l.0 == r.0 && (l.1 - r.1).abs() < 1e-12), "{linear:?}");
}

#[test]
fn a_schedule_can_start_at_zero() {
    // Point 0 is set before training, and 0 is a valid value.
    assert_eq!(
        sets(1..=2, |p| ScheduledHyperParamSetter::new(p, [(0, 0.0), (2, 0.3)])),
        [(0, 0.0), (2, 0.3)]
    );
    assert_eq!(sets(5..=6, |p| ScheduledHyperParamSetter::new(p, [(0, 0.5), (2, 0.0)])), [(0, 0.0)]);
}

#[test]
fn a_linear_schedule_of_steps() {
    let points = [(30, 0.3), (40, 0.4), (50, 0.5)];
    let attribute = Attribute::new(1.0);
    let setter = ScheduledHyperParamSetter::new(attribute.param(), points).linear().step_based();
    let config = config().callback(attribute.clone()).callback(setter);
    train(config.steps_per_epoch(7).max_epoch(10));
    let set = attribute.sets.take();
    // Sets nothing before the first point and after the last.
    assert_eq!(set.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (30..=50).collect::<Vec<_>>());
    for (step, value) in set {
        assert!((value - step as f64 / 100.0).abs() < 1e-12, "{value} at {step}");
    }
}

#[test]
fn a_schedule_sets_a_variable() {
    let setter = ScheduledHyperParamSetter::new("knob", [(0, 0.5), (2, 0.25)]);
    let trained = train(config().callback(setter).max_epoch(3));
    assert_eq!(trained.session.read("knob").unwrap().to_scalar().unwrap(), 0.25);
    assert_eq!(trained.session.read("other").unwrap().to_scalar().unwrap(), 1.0);
}

#[test]
fn the_optimizer_uses_the_rate_that_is_set() {
    /// [`Line`](crate::models::Line) with an adjustable learning rate.
    struct AdjustableRate;
    impl ModelDesc for AdjustableRate {
        fn inputs(&self) -> Vec<TensorSpec> {
            Knobs.inputs()
        }
        fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
            Knobs.build_graph(t, inputs)
        }
        fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
            Sgd::new(t.hyper_param("learning_rate", 0.05)).boxed()
        }
    }
    // Returns the weights after `epochs` epochs. The rate is 0 after epoch `still`.
    let weights = |epochs, still| {
        let setter = ScheduledHyperParamSetter::new("learning_rate", [(still, 0.0)]);
        let config = TrainConfig::new(AdjustableRate, line(2)).no_logdir().max_epoch(epochs).callback(setter);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        trained.session.read("fc/W").unwrap()
    };
    assert_eq!(weights(1, 9), weights(4, 1));
    assert_ne!(weights(1, 9), weights(2, 9));
    assert_ne!(weights(1, 9), weights(1, 0));
}

#[test]
fn invalid_hyper_params_are_errors() {
    let schedule = |name: &str| ScheduledHyperParamSetter::new(name, [(0, 2.5)]);
    let e = error(config().callback(schedule("knobb")));
    assert!(
        e.contains("no variable named \"knobb\"") && e.contains("scalar variables are: count, knob, other"),
        "{e}"
    );
    let e = error(config().callback(schedule("fc/b")));
    assert_mentions(&e, &["fc/b", "[1]", "scalar"]);
    let e = error(config().callback(schedule("count")));
    assert!(e.contains("count has dtype i64") && e.contains("2.5"), "{e}");
    let e = error(config().callback(ScheduledHyperParamSetter::new("knob", [(4, 0.1), (4, 0.2)])));
    assert_mentions(&e, &["point 4", "0.1", "0.2"]);
    let whole = ScheduledHyperParamSetter::new("count", [(0, 7.0)]);
    let trained = train(config().callback(whole).max_epoch(1));
    assert_eq!(trained.session.read("count").unwrap().to_scalar().unwrap(), 7.0);
}

#[test]
fn a_function_of_epoch_and_value() {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let noted = calls.clone();
    let setter = HyperParamSetterWithFunc::new("knob", move |epoch, value| {
        noted.borrow_mut().push((epoch, value));
        value + 1.0
    });
    train(config().callback(setter).starting_epoch(3).max_epoch(5));
    assert_eq!(calls.take(), [(2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)]);
}

#[test]
fn values_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    // Written during training: a value, an invalid value, no entry, no file.
    struct WriteFile(std::path::PathBuf);
    impl Callback for WriteFile {
        fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            let text = ["other: 9\nknob: 0.5\n", "knob: much", "other: 3"].get(cx.epoch_num as usize - 1);
            match text {
                Some(text) => std::fs::write(&self.0, text).unwrap(),
                None => std::fs::remove_file(&self.0).unwrap(),
            }
            Ok(())
        }
    }
    let setter = HumanHyperParamSetter::new("knob");
    let hand = WriteFile(dir.path().join("hyper.txt"));
    let trained = train(config().logdir(dir.path()).callback(hand).callback(setter).max_epoch(4));
    assert_eq!(trained.session.read("knob").unwrap().to_scalar().unwrap(), 0.5);
    assert_eq!(trained.session.read("other").unwrap().to_scalar().unwrap(), 1.0);
    let e = error(config().callback(HumanHyperParamSetter::new("knob")));
    assert_mentions(&e, &["HumanHyperParamSetter", "log directory"]);
}

/// Reports one of these values after each epoch.
struct Put(&'static [f64]);

impl Callback for Put {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.put_scalar("error", self.0[cx.epoch_num as usize - 1]);
        Ok(())
    }
    fn produces(&self) -> Vec<tensorpack::callback::Statistic> {
        vec![tensorpack::callback::Statistic::new("error", tensorpack::callback::When::Epoch)]
    }
}

fn monitored(
    values: &'static [f64],
    make: impl FnOnce(StatMonitorParamSetter) -> StatMonitorParamSetter,
) -> (Vec<(u64, f64)>, Trained) {
    let attribute = Attribute::new(1.0);
    let setter = make(StatMonitorParamSetter::new(attribute.param(), "error", |x| x / 2.0, 0.1, 3));
    let config = config().callback(attribute.clone()).callback(Put(values)).callback(setter);
    let trained = train(config.max_epoch(values.len() as u64));
    (attribute.sets.take(), trained)
}

#[test]
fn a_plateau_changes_the_value() {
    // 0.95 and 0.92 do not improve on 1 by more than 0.1; then counting starts over.
    let (set, _) = monitored(&[1.0, 0.95, 0.92, 0.85, 0.82, 0.7, 0.7, 0.7], |s| s);
    assert_eq!(set, [(3, 0.5), (8, 0.25)]);
    let (set, _) = monitored(&[1.0, 1.2, 1.2, 1.2, 1.2], |s| s.larger_is_better());
    assert_eq!(set, [(4, 0.5)]);
    let (set, trained) = monitored(&[1.0; 9], |s| s.stop_below(0.3));
    assert_eq!(set, [(3, 0.5)]);
    assert!(matches!(&trained.ended, Ended::Stopped(why) if why.contains("attribute would be set to 0.25")));
}

#[test]
fn child_with_a_pipe() {
    let Some(dir) = crate::processes::dir() else { return };
    let path = std::ffi::CString::new(dir.join("hyper.txt").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path is a string that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let setter = HumanHyperParamSetter::new("knob");
    let config = TrainConfig::new(Knobs, line(2)).callback(setter).logdir(dir).max_epoch(1);
    eprintln!("{}", error(config));
}

/// Opening a pipe would wait for a writer, forever.
#[test]
fn a_pipe_instead_of_the_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = crate::processes::command("hyper_params::child_with_a_pipe", dir.path());
    let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let start = std::time::Instant::now();
    let ended = loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() < std::time::Duration::from_secs(20) => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            ended => break ended,
        }
    };
    child.kill().unwrap();
    let text = crate::processes::text(&child.wait_with_output().unwrap());
    assert!(ended.is_some_and(|status| status.success()), "the child hangs: {text}");
    assert!(text.contains("hyper.txt") && text.contains("not a regular file"), "{text}");
}
