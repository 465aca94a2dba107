//! A NaN stops the step: the error names the first bad result and its line, and no variable
//! changes.

use crate::device;
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromFn;
use tensorpack::graph::{Fetch, Init, VariableSpec};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

#[test]
fn a_bad_step_names_the_tensor_and_changes_nothing() {
    let Some(device) = device() else { return };
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(6)]));
    let divisor = g.placeholder(&TensorSpec::f32("divisor", []));
    let y = Linear::new(16).relu().apply(&t, "fc0", &x);
    let line = line!() + 1;
    let y = t.scope("head", |_| (&y / &divisor).named("ratio"));
    let cost = Linear::new(1).apply(&t, "fc1", &y).square().mean().named("cost");
    let train = minimize(&cost, &Adam::new(0.01)).unwrap();
    let (cost, train) = (Fetch::from(&cost), Fetch::from(&train));
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    let x = HostTensor::from_f64(tensorpack::DType::F32, [2, 6], &[0.5; 12]).unwrap();
    let step =
        |divisor: f32| session.run(&[&cost, &train], &[("x", &x), ("divisor", &HostTensor::scalar(divisor))]);
    let variables = || -> Vec<HostTensor> {
        session.graph().variables().iter().map(|v| session.read(&v.name).unwrap()).collect()
    };
    let first = step(1.0).unwrap();
    let before = variables();
    let e = step(0.0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
    assert_mentions(&e, &["head/ratio", "divisor is zero", "no variable was changed"]);
    assert!(variables() == before, "a bad step changed a variable");
    let second = step(1.0).unwrap();
    assert!(second[0].to_scalar().unwrap() < first[0].to_scalar().unwrap());
    assert!(variables() != before);
}

#[test]
fn every_optimizer_stops_before_it_overflows() {
    let Some(device) = device() else { return };
    crate::overflow_cases::every_optimizer(device, 5);
}

#[test]
fn training_stops_or_skips_and_keeps_the_last_checkpoint() {
    use crate::overflow_in_training::Setup;
    use tensorpack::train::{SimpleTrainer, SyncMultiGpuTrainer};
    let Some(devices) = crate::devices(2) else { return };
    let setups = [
        Setup { device: devices[0], towers: 1, trainer: |_| SimpleTrainer::new().into() },
        Setup { device: devices[0], towers: 2, trainer: |n| SyncMultiGpuTrainer::new(n).into() },
    ];
    setups[1].names_the_tower();
    for setup in setups {
        setup.stops();
        setup.skips();
        setup.keeps_the_last_checkpoint();
    }
}

/// The square of a product, which overflows if the input is large and the weight is not zero.
struct Square;

impl ModelDesc for Square {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::Constant(1.0)));
        (w.value() * &inputs[0]).square().named("square").mean()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.25).boxed()
    }
}

/// Sets the weight to zero after the third and the fourth step, and records it at the end.
struct Resets(Arc<Mutex<f64>>);

impl Callback for Resets {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        match cx.global_step {
            3 | 4 => cx.session().write("w", &HostTensor::scalar(0f32)),
            _ => Ok(()),
        }
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() = cx.session().read("w")?.to_scalar()?;
        Ok(())
    }
}

/// The third step is still in flight then, and fails: the weight keeps the value of the second step,
/// and the search for the tensor starts from that value.
#[test]
fn a_callback_that_writes_a_variable_after_a_bad_step_does_not_hide_it() {
    let Some(device) = device() else { return };
    let train = |device, steps_per_launch: usize| {
        let batch = |i: u64| Ok(vec![HostTensor::new([1], vec![if i == 2 { 1e30f32 } else { 1.0 }])?]);
        let weight = Arc::default();
        let config = TrainConfig::new(Square, FromFn::new(20, batch))
            .session(SessionOptions { device, ..SessionOptions::default() })
            .callback(Resets(Arc::clone(&weight)))
            .steps_per_launch(steps_per_launch)
            .max_epoch(1)
            .no_logdir()
            .extra_callbacks(Vec::new());
        let e = launch_train_with_config(config, SimpleTrainer::new()).err().unwrap();
        (e, *weight.lock().unwrap())
    };
    let (right, _) = train(Device::Cpu(0), 1);
    assert_mentions(&right, &["step 3", "square is not finite"]);
    for steps in [1, 4] {
        let (found, weight) = train(device, steps);
        assert_eq!((found.message(), found.site()), (right.message(), right.site()));
        assert_eq!(weight, 0.25, "{steps} steps per launch");
    }
}

#[test]
fn an_infinite_cost_is_an_error_even_if_it_is_not_fetched() {
    let Some(device) = device() else { return };
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [3]).init(Init::Constant(-1.0)));
    let train = minimize(&w.value().relu().log().sum(), &Adam::new(0.1)).unwrap();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    let e = session.run(&[&train], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert_eq!(session.read("w").unwrap().to_f64_vec(), [-1.0; 3]);
}

#[test]
fn factors_of_an_update_must_be_finite_but_a_statistic_may_start_at_infinity() {
    let Some(device) = device() else { return };
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let d = g.placeholder(&TensorSpec::f32("d", []));
    let best = t.variable(VariableSpec::new("best", []).init(Init::Constant(f64::INFINITY)).non_trainable());
    let w = t.variable(VariableSpec::new("w", [3]));
    let scaled = w.update(|w| w * (1.0 / &d).named("scale"));
    let kept = best.update(|best| best.minimum(&d));
    let untouched = best.update(|best| best * 1.0);
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    let feed = |d: f32| HostTensor::scalar(d);
    session.run(&[&untouched], &[]).unwrap();
    session.run(&[&kept], &[("d", &feed(2.0))]).unwrap();
    assert_eq!(session.read("best").unwrap().to_scalar().unwrap(), 2.0);
    let e = session.run(&[&scaled], &[("d", &feed(0.0))]).unwrap_err();
    assert!(e.message().starts_with("scale is not finite"), "{e}");
    session.run(&[&scaled], &[("d", &feed(1.0))]).unwrap();
}

#[test]
fn a_bad_feed_is_an_error_even_if_no_result_depends_on_it() {
    let Some(device) = device() else { return };
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
    let shown = x.slice_axis(0, 0, Some(1)).sum();
    let count = t.variable(VariableSpec::new("count", []).init(Init::Constant(0.0)).non_trainable());
    let counted = count.update(|count| count + &shown);
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x = HostTensor::new([2, 3], vec![1.0, 1.0, 1.0, 1.0, bad, 1.0]).unwrap();
        for e in [session.run(&[&shown], &[("x", &x)]), session.run(&[&counted], &[("x", &x)])] {
            let e = e.unwrap_err();
            assert_eq!(
                (e.kind(), e.message()),
                (ErrorKind::NotFinite, "the feed of x contains a NaN or an infinity, at element 4 of [2, 3]")
            );
        }
    }
    let x = HostTensor::new([2, 3], vec![1.0f32; 6]).unwrap();
    session.run(&[&counted], &[("x", &x)]).unwrap();
    assert_eq!(session.read("count").unwrap().to_scalar().unwrap(), 3.0);
}
