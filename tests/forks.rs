//! Forked sessions share variables: each run computes on a snapshot of them and updates the current
//! values.

use std::sync::{Arc, Barrier};
use tensorpack::ErrorKind;
use tensorpack::graph::{Fetch, OpDef, Spec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::prelude::*;

static COMPUTES: Barrier = Barrier::new(2);
static GOES_ON: Barrier = Barrier::new(2);

/// Returns its input; if it is 2, waits for the other thread first.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Wait;

impl OpDef for Wait {
    fn name(&self) -> &str {
        "Wait"
    }
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(Wait)))
    }
}

impl CustomKernel for Wait {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        if inputs[0].to_scalar()? == 2.0 {
            COMPUTES.wait();
            GOES_ON.wait();
        }
        outputs[0].copy_from_bytes(inputs[0].as_bytes())
    }
}

/// A fork whose update overflows changes nothing, although another fork's update succeeded
/// meanwhile.
#[test]
fn an_update_that_overflows_is_not_applied() {
    let graph = Graph::new();
    let w = TowerContext::training(&graph).variable(VariableSpec::new("w", [300]));
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    let cost = ((w.value() - w.value().stop_gradient()) * &x).sum();
    let step = Fetch::from(&minimize(&cost, &Adam::new(0.1)).unwrap());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let (one, other) = (session.fork(0, 2).unwrap(), session.fork(1, 2).unwrap());
    let run = |fork: &Session, x: f32| fork.run(&[&step], &[("x", &HostTensor::scalar(x))]).map(|_| ());
    let variables = || -> Vec<HostTensor> {
        session.graph().variables().iter().map(|v| session.read(&v.name).unwrap()).collect()
    };
    run(&one, 1.0).unwrap();
    run(&other, 1e18).unwrap();
    let before = variables();
    let e = run(&one, 1e25).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::NotFinite);
    assert!(e.message().contains("the variable w/adam_v "), "{e}");
    assert!(variables() == before);
    run(&other, 2.0).unwrap();
    assert!(variables() != before);
}

/// Gradients use the weights at the start of a run; the update uses the momentum and weights at its
/// end.
#[test]
fn a_run_computes_on_a_snapshot_and_loses_no_update() {
    let graph = Graph::new();
    let w = TowerContext::training(&graph).variable(VariableSpec::new("w", []).init(Init::ones()));
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    let x = Tensor::apply_one(Wait, &[&x]);
    let cost = w.square() * x * 0.5;
    let step = Fetch::from(&minimize(&cost, &Momentum::new(0.5, 0.5)).unwrap());
    // An update that reads the current weight through another operation.
    let moved = Fetch::from(&(w.current() - w.value() * 1.5));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let (slow, fast) = (session.fork(0, 2).unwrap(), session.fork(1, 2).unwrap());
    let (one, two) = (HostTensor::scalar(1f32), HostTensor::scalar(2f32));
    std::thread::scope(|s| {
        let slow = &slow;
        let run = s.spawn(|| slow.run(&[&step, &moved], &[("x", &two)]).map(|found| found[0].clone()));
        COMPUTES.wait();
        // Gradient 1: v = 1, w = 1 - 0.5. Then gradient 0.5: v = 1, w = 0.
        for _ in 0..2 {
            fast.run(&[&step], &[("x", &one)]).unwrap();
            assert_eq!(fast.staleness().unwrap(), 0);
        }
        assert_eq!(session.read("w").unwrap(), HostTensor::scalar(0f32));
        session.write("w", &HostTensor::scalar(0.25f32)).unwrap();
        GOES_ON.wait();
        // From 0.25 by 1.25: both weights in the update are current.
        assert_eq!(run.join().unwrap().unwrap(), HostTensor::scalar(-1f32 - 0.375));
    });
    // The gradient is 2, of the weight 1 that it began with: v = 0.5 + 2, w = 0.25 - 0.5 * 2.5.
    assert_eq!(slow.staleness().unwrap(), 2);
    assert_eq!(session.read("w/momentum").unwrap(), HostTensor::scalar(2.5f32));
    assert_eq!(session.read("w").unwrap(), HostTensor::scalar(-1f32));
    // The session itself, and the next run of a fork, read the current values.
    session.write("w", &HostTensor::scalar(8f32)).unwrap();
    slow.run(&[&step], &[("x", &one)]).unwrap();
    assert_eq!(slow.staleness().unwrap(), 0);
    assert_eq!(slow.read("w").unwrap(), HostTensor::scalar(8f32 - 0.5 * (0.5 * 2.5 + 8.0)));
}

/// Many concurrent runs: no update is lost or applied twice.
#[test]
fn no_update_is_lost() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let w = t.variable(VariableSpec::new("w", [33, 31]).init(Init::zeros()));
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(33)]));
    let cost = x.matmul(&w).sum();
    let step = Fetch::from(&minimize(&cost, &Adam::new(1e-3)).unwrap());
    let options = SessionOptions { threads: Some(2), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let x = HostTensor::new([4, 33], vec![1f32; 4 * 33]).unwrap();
    let forks: Vec<Session> = (0..3).map(|i| session.fork(i, 3).unwrap()).collect();
    std::thread::scope(|s| {
        for fork in &forks {
            let (x, step) = (&x, &step);
            s.spawn(move || (0..20).for_each(|_| drop(fork.run(&[step], &[("x", x)]).unwrap())));
        }
        for _ in 0..20 {
            let seen = session.read("w").unwrap().to_f64_vec();
            // Updates are atomic: every element has the same value.
            assert!(seen.iter().all(|w| *w == seen[0]));
        }
    });
    let power = session.read("adam_beta1_power").unwrap().to_f64_vec()[0];
    assert!((power - 0.9f64.powi(61)).abs() < 1e-12, "{power}");
}

/// A fork runs what reads the current variables last. If that changes the order of the all-reduces
/// of one tower only, the towers would add tensors of different sizes.
#[test]
fn towers_of_a_fork_that_would_sum_in_different_orders_are_an_error() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(4)]));
    let y = graph.placeholder(&TensorSpec::f32("y", [Some(16)]));
    let mut steps = Vec::new();
    for i in 0..2 {
        let t = TowerContext::new(&graph, tensorpack::tower::Mode::Training, i, 2);
        t.build(|t| {
            let a = t.variable(VariableSpec::new("a", [4]).init(Init::Constant(0.0)));
            let b = t.variable(VariableSpec::new("b", [16]));
            // The first tower contributes the variable, the second one a feed.
            let small = t.all_reduce_mean("small", if i == 0 { a.value() } else { &x });
            let large = t.all_reduce_mean("large", &y);
            if i == 0 {
                steps.extend([a.assign(&small), b.assign(&large)]);
            }
        });
    }
    let options = SessionOptions { deadline: std::time::Duration::from_secs(2), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let fed = [1.0f32; 16];
    let (x, y) = (HostTensor::new([4], fed[..4].to_vec()), HostTensor::new([16], fed.to_vec()));
    let (x, y) = (x.unwrap(), y.unwrap());
    let run = |session: &Session| session.run(&[&steps[0], &steps[1]], &[("x", &x), ("y", &y)]);
    run(&session).unwrap();
    assert_eq!(session.read("a").unwrap().as_slice::<f32>().unwrap(), [0.5; 4]);
    assert_eq!(session.read("b").unwrap().as_slice::<f32>().unwrap(), [1.0; 16]);
    let e = run(&session.fork(0, 1).unwrap()).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Shape, "{e}");
    assert!(e.message().contains("small") && e.message().contains("large"), "{e}");
    assert!(e.site().is_some_and(|s| s.file.ends_with("forks.rs")), "{e}");
    assert_eq!(session.read("a").unwrap().as_slice::<f32>().unwrap(), [0.5; 4]);
}

#[test]
fn a_fork_of_no_tower_is_an_error() {
    let session = Session::new(Graph::new().freeze().unwrap()).unwrap();
    for (tower, towers) in [(0, 0), (2, 2), (usize::MAX, 1)] {
        let e = session.fork(tower, towers).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.site().is_some_and(|site| site.file.ends_with("forks.rs")), "{e}");
    }
    assert!(session.fork(0, usize::MAX).is_ok());
}

#[test]
fn more_threads_than_any_machine_has_are_an_error() {
    for threads in [5_000, usize::MAX] {
        let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
        let e = Session::with(Graph::new().freeze().unwrap(), options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    }
}
