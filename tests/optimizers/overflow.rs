//! Updates that overflow on the CPU engine are errors; no non-finite value is written.

use super::net::build;
use super::overflow_cases::{self, Model};
use tensorpack::graph::{Graph, Init, TensorSpec, VariableSpec};
use tensorpack::optim::gradproc::GlobalNormClip;
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Lamb, Momentum, Optimizer, PostProcess, RmsProp, Schedule, Sgd,
    minimize,
};
use tensorpack::runtime::{Device, Session, SessionOptions};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor};

#[test]
fn every_optimizer_stops_before_it_overflows() {
    // Large variables are checked by interval bounds; small ones element by element in every step.
    for len in [5, 6000] {
        overflow_cases::every_optimizer(Device::Cpu(0), len);
    }
}

fn scalar(x: f32) -> HostTensor {
    HostTensor::scalar(x)
}

/// If one of several updates overflows, none is applied, whatever their order and kind.
#[test]
fn all_updates_or_none() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", []));
    let wide = g.placeholder(&TensorSpec::f32("wide", [Some(3000)]));
    let variable = |name: &str, sizes: &[usize]| {
        t.variable(VariableSpec::new(name, sizes.to_vec()).init(Init::ones()).non_trainable())
    };
    let (a, b, c) = (variable("a", &[7]), variable("b", &[]), variable("c", &[3000]));
    let count =
        t.variable(VariableSpec::new("count", []).dtype(DType::I64).init(Init::zeros()).non_trainable());
    let updates = [
        a.update(|a| a * 2.0),
        count.update(|n| n + 1.0),
        b.update(|b| b * &x * &x),
        c.update(|c| c * &wide),
        a.update(|a| a + 1.0),
    ];
    let all = g.group(&updates.iter().collect::<Vec<_>>());
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let values = || ["a", "b", "c", "count"].map(|n| session.read(n).unwrap());
    let run = |x: f32, wide: f32| {
        let wide = HostTensor::new([3000], vec![wide; 3000]).unwrap();
        session.run(&[&all], &[("x", &scalar(x)), ("wide", &wide)])
    };
    run(2.0, 1e30).unwrap();
    let good = values();
    assert_eq!((good[0].to_f64_vec()[6], good[1].to_scalar().unwrap()), (3.0, 4.0));
    for (x, wide, name) in [(1e30, 1.0, "b"), (1.0, 1e30, "c")] {
        let e = run(x, wide).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
        assert!(e.message().contains(&format!("the variable {name} ")), "{e}");
        assert!(values() == good, "{name} overflowed, and a variable changed");
    }
    run(1.0, 1.0).unwrap();
    assert_eq!(values()[3].to_scalar().unwrap(), 2.0);
}

#[test]
fn only_variables_with_an_infinite_initial_value_can_be_assigned_infinity() {
    for (initial, is_error) in [(0.0, true), (f64::INFINITY, false)] {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let v = t.variable(VariableSpec::new("v", [2]).init(Init::Constant(initial)).non_trainable());
        let op = v.assign(&g.constant(HostTensor::new([2], vec![f32::INFINITY; 2]).unwrap()));
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let ran = session.run(&[&op], &[]);
        assert_eq!(ran.is_err(), is_error, "{ran:?}");
        if let Err(e) = ran {
            assert_eq!(e.kind(), ErrorKind::NotFinite);
            assert!(e.message().contains("the variable v "), "{e}");
            assert_eq!(session.read("v").unwrap().to_f64_vec(), [0.0, 0.0]);
        }
    }
}

/// The largest finite values of bf16 and f16 are below that of f32.
#[test]
fn overflow_is_checked_in_the_dtype_of_the_variable() {
    let largest =
        [(DType::F32, f64::from(f32::MAX)), (DType::Bf16, 3.3895313892515355e38), (DType::F16, 65504.0)];
    for (dtype, max) in largest {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let x = g.placeholder(&TensorSpec::f32("x", []));
        let v =
            t.variable(VariableSpec::new("v", [4]).dtype(dtype).init(Init::Constant(max)).non_trainable());
        let scaled = v.update(|v| v * x.cast(dtype));
        let session = Session::new(g.freeze().unwrap()).unwrap();
        session.run(&[&scaled], &[("x", &scalar(1.0))]).unwrap();
        assert_eq!(session.read("v").unwrap().to_f64_vec(), [max; 4]);
        let e = session.run(&[&scaled], &[("x", &scalar(1.01))]).unwrap_err();
        assert!(e.message().contains("the variable v "), "{e}");
        assert_eq!(session.read("v").unwrap().to_f64_vec(), [max; 4]);
        session.run(&[&scaled], &[("x", &scalar(0.5))]).unwrap();
    }
}

/// The bounds of the next step include values that the caller wrote to a variable.
#[test]
fn values_written_by_the_caller_are_checked() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [64]).init(Init::ones()));
    let cost = w.value().mean();
    let train = minimize(&cost, &Adam::new(0.1)).unwrap();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    session.run(&[&train], &[]).unwrap();
    session.write("w/adam_v", &HostTensor::new([64], vec![-1.0f32; 64]).unwrap()).unwrap();
    let before = session.read("w/adam_m").unwrap();
    let e = session.run(&[&train], &[]).unwrap_err();
    assert!(e.to_string().contains("the variable w"), "the square root of a negative second moment: {e}");
    assert!(session.read("w/adam_m").unwrap() == before);
}

/// `log(relu(w))` is minus infinity, but its gradient is 0.
#[test]
fn an_infinite_cost_is_an_error_even_if_it_is_not_fetched() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [3]).init(Init::Constant(-1.0)));
    let count = t.variable(VariableSpec::new("count", []).init(Init::zeros()).non_trainable());
    let line = line!() + 1;
    let cost = w.value().relu().log().sum().named("cost");
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let counted = count.update(|n| n + 1.0);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let e = session.run(&[&train, &counted], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
    assert_eq!(session.read("count").unwrap().to_scalar().unwrap(), 0.0);
    // A run that does not depend on the cost does not compute it.
    session.run(&[&counted], &[]).unwrap();
}

/// Interval bounds prove that ordinary updates are finite, so no update is computed twice.
#[test]
fn ordinary_updates_are_computed_once() {
    let optimizers: Vec<Box<dyn Optimizer>> = vec![
        Sgd::new(0.1).boxed(),
        Momentum::new(0.1, 0.9).boxed(),
        Momentum::new(Schedule::cosine(0.1, 0.0, 100), 0.9).nesterov().boxed(),
        RmsProp::new(0.1).momentum(0.9).centered().boxed(),
        Adagrad::new(0.1).boxed(),
        Adam::new(0.1).boxed(),
        AdamW::new(0.1).boxed(),
        Lamb::new(0.1).boxed(),
        Momentum::new(0.1, 0.9).process(GlobalNormClip::new(1.0)).boxed(),
        PostProcess::new(Adam::new(0.1), |_, w| Some(w.clip(-0.01, 0.01))).boxed(),
        Accumulate::new(AdamW::new(0.1), 4).boxed(),
        Accumulate::new(RmsProp::new(0.1).momentum(0.9).centered(), 4).boxed(),
        Ema::new(Adam::new(0.1), 0.99).boxed(),
        Ema::new(Accumulate::new(Adam::new(0.1), 4), 0.99).debiased().boxed(),
    ];
    for optimizer in optimizers {
        for dtype in [DType::F32, DType::F64] {
            let large = Model::new(&*optimizer, dtype, Device::Cpu(0), 6000);
            (0..40).for_each(|_| large.step(1.0).unwrap());
            assert_eq!(large.runs(), 40, "{optimizer:?} {dtype}: an update was computed twice");
            let graph = Graph::new();
            let [cost, train] = build(&graph, dtype, &*optimizer).unwrap();
            let options = SessionOptions { profile: true, ..SessionOptions::default() };
            let session = Session::with(graph.freeze().unwrap(), options).unwrap();
            let x: Vec<f64> = (0..24).map(|i| f64::from(i).sin()).collect();
            let x = HostTensor::from_f64(dtype, [4, 6], &x).unwrap();
            let label = HostTensor::zeros(DType::I32, [4]).unwrap();
            let divisor = HostTensor::from_f64(dtype, [], &[1.0]).unwrap();
            for _ in 0..6 {
                session
                    .run(&[&cost, &train], &[("x", &x), ("label", &label), ("divisor", &divisor)])
                    .unwrap();
            }
            for kernel in session.profile().unwrap() {
                assert_eq!(kernel.runs, 6, "{optimizer:?} {dtype}: {} ran twice in a step", kernel.name);
            }
        }
    }
}

/// The bound of a variable grows with every step, as if all updates had the same sign, until it is
/// useless. The variable is then checked, which resets the bound.
#[test]
fn variables_are_checked_when_bounds_are_too_loose() {
    let model = Model::new(&Sgd::new(1.0), DType::F32, Device::Cpu(0), 6000);
    for step in 0..100u64 {
        model.step(if step % 2 == 0 { 3e37 } else { -3e37 }).unwrap();
        assert_eq!(model.runs(), step + 1, "an update was computed twice");
    }
    let e = (0..20).find_map(|_| model.step(3e37).err()).expect("an error");
    assert!(e.message().contains("the variable w "), "{e}");
}
