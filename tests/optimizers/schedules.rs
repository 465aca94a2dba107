//! Schedules compared with their formulas in f64, at small steps and at ten million.

use std::f64::consts::PI;
use tensorpack::graph::{GLOBAL_VARIABLES, Graph, HYPER_PARAMS, TRAINABLE_VARIABLES, TensorSpec};
use tensorpack::optim::{Rate, Schedule};
use tensorpack::runtime::Session;
use tensorpack::tower::{Mode, TowerContext};
use tensorpack::{DType, ErrorKind, HostTensor};

const STEPS: [i64; 12] = [0, 1, 2, 99, 100, 101, 4679, 4680, 4681, 9_999_999, 10_000_000, 10_000_001];

fn check(schedule: Schedule, right: impl Fn(f64) -> f64) {
    let graph = Graph::new();
    let step = graph.placeholder(&TensorSpec::new("step", DType::I64, []));
    let value = schedule.at(&step);
    assert_eq!(value.dtype(), DType::F64);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for step in STEPS {
        let found =
            session.run(&[&value], &[("step", &HostTensor::scalar(step))]).unwrap()[0].to_f64_vec()[0];
        let right = right(step as f64);
        let close = (found - right).abs() <= 1e-12 * right.abs().max(1e-6);
        assert!(close, "{schedule:?} at step {step} is {found}, not {right}");
    }
}

#[test]
fn every_curve_at_every_step() {
    check(Schedule::constant(0.25), |_| 0.25);
    check(Schedule::piecewise(0.1, [(100, 0.01), (10_000_000, 0.001)]), |s| match s as u64 {
        0..100 => 0.1,
        100..10_000_000 => 0.01,
        _ => 0.001,
    });
    check(Schedule::staircase(1e-3, 0.3, 4680), |s| 1e-3 * 0.3f64.powf((s / 4680.0).floor()));
    check(Schedule::exponential(1e-3, 0.3, 4_680_000), |s| 1e-3 * 0.3f64.powf(s / 4_680_000.0));
    check(Schedule::polynomial(0.1, 0.01, 10_000_000, 1.0), |s| 0.01 + 0.09 * (1.0 - s / 1e7).max(0.0));
    check(Schedule::polynomial(0.1, 0.01, 200, 2.0), |s| 0.01 + 0.09 * (1.0 - s / 200.0).max(0.0).powi(2));
    check(Schedule::cosine(0.1, 0.01, 10_000_001), |s| {
        0.01 + 0.09 * 0.5 * (1.0 + (PI * (s / 10_000_001.0).min(1.0)).cos())
    });
    check(Schedule::staircase(1e-3, 0.3, 4680).warm_up(101), |s| {
        1e-3 * 0.3f64.powf((s / 4680.0).floor()) * ((s + 1.0) / 101.0).min(1.0)
    });
}

/// The steps of each cycle are counted one by one here.
#[test]
fn restarts_begin_at_their_steps() {
    for (steps, factor) in [(1, 1), (1, 2), (3, 1), (5, 2), (7, 3), (10, 10)] {
        let graph = Graph::new();
        let step = graph.placeholder(&TensorSpec::new("step", DType::I64, []));
        let value = Schedule::cosine_restarts(0.1, 0.01, steps, factor).at(&step);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let (mut length, mut at) = (steps, 0);
        for step in 0..2000i64 {
            let found =
                session.run(&[&value], &[("step", &HostTensor::scalar(step))]).unwrap()[0].to_f64_vec();
            let right = 0.01 + 0.09 * 0.5 * (1.0 + (PI * at as f64 / length as f64).cos());
            assert!(
                (found[0] - right).abs() < 1e-9,
                "{steps}, {factor}: step {step} is {found:?}, not {right}"
            );
            at += 1;
            if at == length {
                (at, length) = (0, length * factor);
            }
        }
    }
}

/// Values of PyTorch's `OneCycleLR(optimizer, max_lr=0.5, total_steps=20)`, and what it keeps.
#[test]
fn one_cycle_is_that_of_pytorch() {
    let graph = Graph::new();
    let step = graph.placeholder(&TensorSpec::new("step", DType::I64, []));
    let value = Schedule::one_cycle(0.5, 20).at(&step);
    let short = [1, 2, 3, 4].map(|steps| Schedule::one_cycle(0.5, steps).at(&step));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let at = |value, s: i64| {
        session.run(&[value], &[("step", &HostTensor::scalar(s))]).unwrap()[0].to_f64_vec()[0]
    };
    let expected = [
        0.020000000000000018,
        0.06583592135001265,
        0.18583592135001265,
        0.3341640786499874,
        0.45416407864998737,
        0.5,
        0.49373200311754367,
        0.47524231600673683,
        0.445458088785525,
        0.40587282697488153,
        0.3584715008956504,
        0.30563101096814466,
        0.250001,
        0.19437098903185537,
        0.14153049910434962,
        0.09412917302511849,
        0.05454391121447502,
        0.024759683993263143,
        0.006269996882456277,
        2e-06,
    ];
    for (step, right) in expected.into_iter().enumerate() {
        let found = at(&value, step as i64);
        assert!((found - right).abs() < 1e-12, "step {step} is {found}, not {right}");
    }
    assert_eq!(at(&value, 1000), 0.5 / 250_000.0);
    for value in &short {
        assert!((0..6).all(|step| (2e-6..=0.5).contains(&at(value, step))));
    }
}

#[test]
fn a_staircase_drops_exactly_at_its_step() {
    let graph = Graph::new();
    let step = graph.placeholder(&TensorSpec::new("step", DType::I64, []));
    let value = Schedule::staircase(1.0, 0.5, 3).at(&step);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let at = |s: i64| session.run(&[&value], &[("step", &HostTensor::scalar(s))]).unwrap()[0].to_f64_vec()[0];
    assert_eq!((0..9).map(at).collect::<Vec<_>>(), [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]);
}

#[test]
fn an_invalid_schedule_is_an_error_at_its_line() {
    for (schedule, line, term) in [
        (Schedule::cosine(0.1, 0.0, 0), line!(), "at least 1 step"),
        (Schedule::piecewise(0.1, [(20, 0.01), (10, 0.001)]), line!(), "[20, 10]"),
        (Schedule::cosine_restarts(0.1, 0.0, 10, 0), line!(), "at least 1, got 0"),
        (Schedule::one_cycle(0.1, 0), line!(), "at least 1 step"),
        (Schedule::polynomial(0.1, 0.0, 10, -1.0), line!(), "the power of a decay must not be negative"),
        (Schedule::exponential(0.1, -0.5, 10), line!(), "the factor of a decay must not be negative"),
    ] {
        let graph = Graph::new();
        schedule.at(&graph.global_step());
        let e = graph.freeze().unwrap_err();
        assert!(e.message().starts_with("Schedule: ") && e.message().contains(term), "{e}");
        assert_eq!((e.kind(), e.site().unwrap().line), (ErrorKind::Argument, line));
    }
}

#[test]
fn the_global_step_is_one_variable_and_advances_on_request() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let rate = Rate::from(Schedule::staircase(1.0, 0.5, 2)).tensor(&graph, DType::F32);
    let inside = t.scope("inside", |_| graph.global_step());
    assert_eq!(inside.name(), "global_step");
    assert_eq!(graph.collection(GLOBAL_VARIABLES).variables.len(), 1);
    assert!(graph.collection(TRAINABLE_VARIABLES).variables.is_empty());
    let count = graph.count_step();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.push(session.run(&[&rate, &count], &[]).unwrap()[0].to_f64_vec()[0]);
    }
    assert_eq!(rates, [1.0, 1.0, 0.5, 0.5, 0.25]);
    assert_eq!(session.read("global_step").unwrap().as_slice::<i64>().unwrap(), [5]);
}

#[test]
fn towers_share_a_hyperparameter() {
    let graph = Graph::new();
    let rates: Vec<_> = (0..2)
        .map(|index| {
            let t = TowerContext::new(&graph, Mode::Training, index, 2);
            t.build(|t| t.hyper_param("learning_rate", 0.125))
        })
        .collect();
    assert!(rates.iter().all(|r| r.name() == "learning_rate"));
    assert_eq!(graph.collection(HYPER_PARAMS).variables.len(), 1);
    assert_eq!(graph.collection(GLOBAL_VARIABLES).variables.len(), 1);
    assert!(graph.collection(TRAINABLE_VARIABLES).variables.is_empty());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    assert_eq!(session.read("learning_rate").unwrap().as_slice::<f32>().unwrap(), [0.125]);
}
