//! Asynchronous dispatch: a step is launched before the previous ones have finished. Only the order
//! of hooks shows it.

use crate::device;
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{CollectCx, FetchHandle, GraphCx, RunCx, TrainCx};
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::Cadence;
use tensorpack::train::{NanPolicy, QueueInputTrainer, Trained};

/// A line through the origin, whose cost is divided by an input.
struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("divisor", [])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let y = Linear::new(1).apply(t, "fc", &inputs[0]);
        let cost = ((y - 1.0).square().mean() / &inputs[1]).named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.1).boxed()
    }
}

/// Returns batches; those whose indices are in `bad` divide by zero.
fn batches(bad: &'static [u64]) -> FromFn {
    FromFn::new(1000, move |index| {
        let x: Vec<f32> = (0..6).map(|i| ((index * 5 + i * 3) % 7) as f32 / 7.0).collect();
        let divisor = if bad.contains(&index) { 0.0f32 } else { 1.0 };
        Ok(vec![HostTensor::new([2, 3], x)?, HostTensor::scalar(divisor)])
    })
}

type Weights = Arc<Mutex<Vec<HostTensor>>>;

/// Records the variables at the end of training, even after an error.
struct AtTheEnd(Weights);

impl Callback for AtTheEnd {
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let session = cx.session();
        let read = session.graph().variables().iter().map(|v| session.read(&v.name));
        *self.0.lock().unwrap() = read.collect::<Result<_>>()?;
        Ok(())
    }
}

struct Ran {
    ended: Result<Trained>,
    weights: Vec<HostTensor>,
}

fn train(
    device: Device,
    bad: &'static [u64],
    steps: u64,
    nan: NanPolicy,
    callbacks: Vec<Box<dyn Callback>>,
) -> Ran {
    let weights = Weights::default();
    let config = TrainConfig::new(Line, batches(bad))
        .session(SessionOptions { device, full_precision: true, ..SessionOptions::default() })
        .callback(AtTheEnd(weights.clone()))
        .nan_policy(nan)
        .steps_per_epoch(steps)
        .max_epoch(1)
        .callbacks(callbacks)
        .no_logdir();
    let ended = launch_train_with_config(config, QueueInputTrainer::new());
    let weights = weights.lock().unwrap().clone();
    Ran { ended, weights }
}

/// Records which hooks are called, and for which step.
struct Hooks {
    /// How often the cost is fetched.
    cadence: Cadence,
    cost: Option<FetchHandle>,
    notes: Arc<Mutex<Vec<(&'static str, u64)>>>,
}

impl Hooks {
    fn note(&self, hook: &'static str, finished: u64) -> Result<()> {
        self.notes.lock().unwrap().push((hook, finished + 1));
        Ok(())
    }
}

impl Callback for Hooks {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cost = g.tensor("cost")?;
        self.cost = Some(g.fetch(&cost, self.cadence));
        Ok(())
    }

    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.note("before", cx.global_step)
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let at_once = self.cost.and_then(|cost| cx.scalar(cost)).is_some();
        assert_eq!(at_once, self.cadence == Cadence::EveryRun);
        self.note("after", cx.global_step)
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        let later = self.cost.and_then(|cost| values.scalar(cost)).is_some();
        assert_eq!(later, self.cadence == Cadence::Deferred);
        self.note("collect", values.global_step)
    }
}

fn hooks(device: Device, cadence: Cadence) -> (Vec<(&'static str, u64)>, Vec<HostTensor>) {
    let notes = Arc::default();
    let callback = Hooks { cadence, cost: None, notes: Arc::clone(&notes) };
    let ran = train(device, &[], 4, NanPolicy::Stop, vec![Box::new(callback)]);
    ran.ended.unwrap();
    let notes = notes.lock().unwrap().clone();
    (notes, ran.weights)
}

#[test]
fn the_next_steps_are_launched_before_a_step_is_awaited() {
    let Some(device) = device() else { return };
    let (found, ahead) = hooks(device, Cadence::Deferred);
    let right = [
        [("before", 1), ("after", 1)].as_slice(),
        &[("before", 2), ("after", 2)],
        &[("before", 3), ("collect", 1), ("after", 3)],
        // The last step of an epoch is awaited.
        &[("collect", 2), ("collect", 3), ("before", 4), ("collect", 4), ("after", 4)],
    ];
    assert_eq!(found, right.concat());
    // A callback that needs a value after each step gets it, and the weights are the same.
    let at_once: Vec<_> = (1..=4).flat_map(|i| [("before", i), ("collect", i), ("after", i)]).collect();
    let (found, waited) = hooks(device, Cadence::EveryRun);
    assert_eq!(found, at_once);
    assert!(ahead == waited, "the weights differ");
    assert_eq!(hooks(Device::Cpu(0), Cadence::Deferred).0, at_once);
}

#[test]
fn a_late_error_names_its_step_and_no_variable_changes() {
    let Some(device) = device() else { return };
    let good = train(device, &[], 2, NanPolicy::Stop, Vec::new());
    good.ended.unwrap();
    let bad = train(device, &[2], 8, NanPolicy::Stop, Vec::new());
    let e = bad.ended.err().expect("the third batch divides by zero");
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert!(e.message().starts_with("step 3: cost is not finite"), "{e}");
    assert!(bad.weights == good.weights, "a bad step changed a variable");
}

#[test]
fn bad_steps_are_skipped_as_on_the_cpu_engine() {
    let Some(device) = device() else { return };
    let weights = [device, Device::Cpu(0)].map(|device| {
        let ran = train(device, &[1, 2, 5], 8, NanPolicy::Skip(2), Vec::new());
        ran.ended.unwrap();
        ran.weights.iter().flat_map(HostTensor::to_f64_vec).collect::<Vec<f64>>()
    });
    for (a, b) in weights[0].iter().zip(&weights[1]) {
        assert!((a - b).abs() <= 1e-5, "{weights:?}");
    }
    let e = train(device, &[1, 2, 3], 8, NanPolicy::Skip(2), Vec::new()).ended.err().unwrap();
    assert!(e.message().starts_with("step 4: "), "{e}");
}
