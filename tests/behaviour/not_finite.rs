//! A NaN inside a step stops the step: the error names the first bad result and its line, no
//! variable changes, and training continues as if the step had not run.

use tensorpack::graph::{Fetch, Graph, TensorSpec, UPDATE_OPS, VariableSpec};
use tensorpack::nn::{BatchNorm, Linear};
use tensorpack::optim::{Adam, Optimizer, Sgd, minimize};
use tensorpack::runtime::{Cadence, Clock, Device, Session, SessionOptions, StepProgram};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, Error, ErrorKind, HostTensor, Result};
use tensorpack_testing::assert_mentions;

/// A net whose hidden layer is divided by the input `divisor`.
struct Net {
    session: Session,
    cost: Fetch,
    train: Fetch,
    /// The line of the division.
    line: u32,
}

fn net(optimizer: &dyn Optimizer, threads: usize) -> Net {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(6)]));
    let label = g.placeholder(&TensorSpec::i32("label", [None]));
    let divisor = g.placeholder(&TensorSpec::f32("divisor", []));
    let y = Linear::new(16).relu().apply(&t, "fc0", &x);
    let y = BatchNorm::new().apply(&t, "bn", &y).dropout(0.2);
    let line = line!() + 1;
    let y = t.scope("head", |_| (&y / &divisor).named("ratio"));
    let logits = Linear::new(3).apply(&t, "fc1", &y);
    let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cost");
    let train = minimize(&cost, optimizer).unwrap();
    let updates = g.collection_ops(UPDATE_OPS);
    let train = g.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
    let (cost, train) = (Fetch::from(&cost), Fetch::from(&train));
    let options = SessionOptions { threads: Some(threads), seed: 5, ..SessionOptions::default() };
    Net { session: Session::with(g.freeze().unwrap(), options).unwrap(), cost, train, line }
}

impl Net {
    fn step(&self, k: u64, divisor: f32) -> Result<HostTensor> {
        let [x, label] = batch(k);
        let divisor = HostTensor::scalar(divisor);
        let feeds = [("x", &x), ("label", &label), ("divisor", &divisor)];
        self.session.run(&[&self.cost, &self.train], &feeds).map(|mut fetched| fetched.swap_remove(0))
    }

    fn variables(&self) -> Vec<(String, Vec<u8>)> {
        let names = self.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|n| (n.clone(), self.session.read(&n).unwrap().as_bytes().to_vec())).collect()
    }
}

fn batch(k: u64) -> [HostTensor; 2] {
    let rng = CounterRng::new(1, "batch");
    let x = (0..24).map(|i| rng.normal(k, i) as f32).collect();
    let label = (0..4).map(|i| (rng.word(k + 1000, i) % 3) as i32).collect();
    [HostTensor::new([4, 6], x).unwrap(), HostTensor::new([4], label).unwrap()]
}

fn assert_names_the_division(e: &Error, line: u32) {
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert_mentions(e, &["head/ratio", "not finite", "divisor is zero", "no variable was changed"]);
    let site = e.site().unwrap();
    assert!(site.file.ends_with("tests/behaviour/not_finite.rs"), "{e}");
    assert_eq!(site.line, line, "{e}");
}

#[test]
fn a_bad_step_changes_nothing() {
    for optimizer in [Adam::new(0.01).boxed(), Sgd::new(0.1).boxed()] {
        for bad_at in [0, 1, 7] {
            let (tried, skipped) = (net(&*optimizer, 2), net(&*optimizer, 2));
            assert!(tried.variables().iter().any(|(name, _)| name == "bn/mean/EMA"));
            for k in 0..10 {
                if k == bad_at {
                    let before = tried.variables();
                    assert_names_the_division(&tried.step(k, 0.0).unwrap_err(), tried.line);
                    assert!(tried.variables() == before, "step {k} changed a variable");
                    continue;
                }
                let costs = (tried.step(k, 2.0).unwrap(), skipped.step(k, 2.0).unwrap());
                assert_eq!(costs.0, costs.1, "step {k} after a bad step {bad_at}");
            }
            assert!(tried.variables() == skipped.variables(), "training diverged after a bad step {bad_at}");
        }
    }
}

#[test]
fn a_bad_step_keeps_the_slots_of_the_optimizer() {
    let net = net(&Adam::new(0.01), 1);
    net.step(0, 1.0).unwrap();
    let names: Vec<String> = net.variables().into_iter().map(|(name, _)| name).collect();
    for slot in ["fc0/W/adam_m", "fc0/W/adam_v", "fc1/b/adam_m", "adam_beta1_power", "adam_beta2_power"] {
        assert!(names.iter().any(|n| n == slot), "{slot} is missing from {names:?}");
    }
    let changed =
        |a: &[(String, Vec<u8>)], b: &[(String, Vec<u8>)]| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let before = net.variables();
    net.step(1, 0.0).unwrap_err();
    assert_eq!(changed(&before, &net.variables()), 0);
    net.step(1, 1.0).unwrap();
    assert_eq!(changed(&before, &net.variables()), before.len(), "a good step changes every variable");
}

#[test]
fn a_variable_that_is_not_finite_is_named_itself() {
    let net = net(&Adam::new(0.01), 1);
    net.step(0, 1.0).unwrap();
    let good = net.session.read("fc1/W").unwrap();
    let before = net.variables();
    let mut bad = good.clone();
    bad.as_mut_slice::<f32>().unwrap()[7] = f32::NAN;
    net.session.write("fc1/W", &bad).unwrap();
    let e = net.step(1, 1.0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert_mentions(&e, &["variable fc1/W"]);
    assert!(e.site().unwrap().file.ends_with("not_finite.rs"), "{e}");
    net.session.write("fc1/W", &good).unwrap();
    assert!(net.variables() == before);
    assert!(net.step(1, 1.0).is_ok());
}

#[test]
fn a_variable_that_the_run_does_not_read_is_not_blamed() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let d = g.placeholder(&TensorSpec::f32("d", []));
    t.variable(VariableSpec::new("best", []).init(tensorpack::graph::Init::Constant(f64::INFINITY)).local());
    let w = t.variable(VariableSpec::new("w", [3]));
    let op = w.update(|w| w * (1.0 / &d).named("scale"));
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let e = session.run(&[&op], &[("d", &HostTensor::scalar(0.0f32))]).unwrap_err();
    assert!(e.message().starts_with("scale is not finite"), "{e}");
}

/// The cost is finite, but its gradient is not.
#[test]
fn a_gradient_that_is_not_finite_points_at_the_forward_line() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(3)]));
    let w = t.variable(VariableSpec::new("w", [3]).init(tensorpack::graph::Init::ones()));
    let scaled = &x * w.value();
    let line = line!() + 1;
    let root = t.scope("net", |_| scaled.sqrt().named("root"));
    let cost = root.sum();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let before = session.read("w").unwrap();
    let zero = HostTensor::new([3], vec![1.0f32, 0.0, 1.0]).unwrap();
    assert_eq!(session.run(&[&cost], &[("x", &zero)]).unwrap()[0].to_scalar().unwrap(), 2.0);
    let e = session.run(&[&train], &[("x", &zero)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert!(e.message().starts_with("gradients/net/root/Div is not finite"), "{e}");
    assert_eq!(e.site().unwrap().line, line, "{e}");
    assert_eq!(session.read("w").unwrap(), before);
}

/// A run without updates changes nothing, so it may return NaN.
#[test]
fn a_run_that_changes_nothing_may_return_a_nan() {
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let log = x.log();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let x = HostTensor::new([2], vec![-1.0f32, 0.0]).unwrap();
    let got = session.run(&[&log], &[("x", &x)]).unwrap();
    let got = got[0].as_slice::<f32>().unwrap();
    assert!(got[0].is_nan() && got[1] == f32::NEG_INFINITY, "{got:?}");
}

#[test]
fn a_non_finite_step_run_is_not_counted_and_delivers_nothing() {
    let net = net(&Adam::new(0.01), 2);
    let mut program = StepProgram::new(&[&net.train]);
    let cost = program.declare(&net.cost, Cadence::EveryRun).unwrap();
    let ratio =
        program.declare(&net.session.graph().fetch("head/ratio").unwrap(), Cadence::EverySteps(2)).unwrap();
    let mut run = |step: u64, divisor: f32| {
        let [x, label] = batch(step);
        let divisor = HostTensor::scalar(divisor);
        let clock = Clock { global_step: step, last_of_epoch: false };
        let feeds = [("x", &x), ("label", &label), ("divisor", &divisor)];
        let ran = program.run(&net.session, clock, &feeds);
        (ran, program.value(cost).cloned(), program.value(ratio).cloned())
    };
    let (ran, cost, ratio) = run(1, 1.0);
    assert!(ran.is_ok() && cost.is_some() && ratio.is_none());
    let (ran, cost, ratio) = run(2, 0.0);
    assert_names_the_division(&ran.unwrap_err(), net.line);
    assert_eq!((cost, ratio), (None, None));
    assert_eq!(net.session.run_index().unwrap(), 1);
    let (ran, cost, ratio) = run(2, 1.0);
    ran.unwrap();
    assert_eq!((cost.unwrap().sizes(), ratio.unwrap().sizes()), (&[][..], &[4, 16][..]));
    assert_eq!(net.session.run_index().unwrap(), 2);
}

#[test]
fn an_infinite_intermediate_of_a_finite_update_is_no_error() {
    // Only costs, gradients and next values must be finite, on every device. The bf16 value is stored
    // before the update, and overflows.
    for device in [Device::Cpu(0), Device::Reference] {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let v = t.variable(VariableSpec::new("v", [2]).init(tensorpack::graph::Init::ones()));
        let narrow = (v.value() * 1000.0).exp().cast(DType::Bf16);
        let next = narrow.cast(DType::F32).minimum(&g.constant(HostTensor::scalar(5.0f32)));
        let assign = Fetch::from(&v.assign(&next));
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(g.freeze().unwrap(), options).unwrap();
        session.run(&[&assign], &[]).unwrap_or_else(|e| panic!("{device:?}: {e}"));
        assert_eq!(session.read("v").unwrap().as_slice::<f32>().unwrap(), [5.0; 2], "{device:?}");
    }
}
