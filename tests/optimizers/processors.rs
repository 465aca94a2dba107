//! Gradient processors: the variables they select, their order, and the settings they reject.

use super::net::{Net, WEIGHTS, assert_close, build, cpu};
use tensorpack::graph::{Fetch, Graph, MOVING_SUMMARIES};
use tensorpack::optim::gradproc::{
    FilterGradient, GlobalNormClip, GradProcessor, MapGradient, ScaleGradient, SummaryGradient, ValueClip,
};
use tensorpack::optim::{Adam, Momentum, Optimizer, Sgd};
use tensorpack::runtime::cpu::Isa;
use tensorpack::{DType, Error, ErrorKind};
use tensorpack_testing::assert_mentions;

/// Returns the change of each weight after one step.
fn steps(optimizer: &dyn Optimizer) -> Vec<Vec<f64>> {
    let net = Net::new(DType::F64, optimizer);
    let before = WEIGHTS.map(|w| net.read(w));
    net.step(0..1);
    let moved = |(before, w): (&Vec<f64>, &str)| {
        before.iter().zip(net.read(w)).map(|(a, b)| b - a).collect::<Vec<f64>>()
    };
    before.iter().zip(WEIGHTS).map(moved).collect()
}

fn moves(optimizer: &dyn Optimizer) -> [bool; 4] {
    let all: Vec<bool> = steps(optimizer).iter().map(|s| s.iter().any(|&d| d != 0.0)).collect();
    all.try_into().unwrap()
}

fn times(steps: &[f64], factor: f64) -> Vec<f64> {
    steps.iter().map(|s| s * factor).collect()
}

#[test]
fn scale_takes_the_first_match_and_zero_drops() {
    let plain = steps(&Sgd::new(0.5));
    let scaled = steps(&Sgd::new(0.5).process(ScaleGradient::new("fc0/W", 3.0).and("fc0/.*", 0.0)));
    assert_close("fc0/W", &scaled[0], &times(&plain[0], 3.0), 1e-12);
    assert!(scaled[1].iter().all(|&d| d == 0.0));
    assert_close("fc1/W", &scaled[2], &plain[2], 1e-12);
    // A dropped variable has no slot either.
    let net = Net::new(DType::F64, &Momentum::new(0.1, 0.9).process(ScaleGradient::new("fc0/.*", 0.0)));
    assert!(net.session.read("fc0/W/momentum").is_err() && net.session.read("fc1/W/momentum").is_ok());
}

#[test]
fn map_changes_or_drops_matching_gradients() {
    let plain = steps(&Sgd::new(0.5));
    let map = MapGradient::new("fc1/.*", |v, g| v.name().ends_with("W").then(|| g * -2.0));
    let mapped = steps(&Sgd::new(0.5).process(map));
    assert_close("fc0/W", &mapped[0], &plain[0], 1e-12);
    assert_close("fc1/W", &mapped[2], &times(&plain[2], -2.0), 1e-12);
    assert!(mapped[3].iter().all(|&d| d == 0.0));
}

#[test]
fn filter_keeps_matching_gradients() {
    assert_eq!(moves(&Sgd::new(0.5)), [true; 4]);
    assert_eq!(moves(&Adam::new(0.5).process(FilterGradient::keep("fc1/.*"))), [false, false, true, true]);
}

#[test]
fn processors_run_in_the_order_they_are_added() {
    let limit = 1e-3;
    let clipped_last =
        Sgd::new(1.0).process(ScaleGradient::new(".*", 1e6)).process(ValueClip::new(limit)).boxed();
    let largest = |all: Vec<Vec<f64>>| all.concat().iter().fold(0.0f64, |m, d| m.max(d.abs()));
    assert!((largest(steps(&*clipped_last)) - limit).abs() < 1e-12);
    let clipped_first = Sgd::new(1.0).process(ValueClip::new(limit)).process(ScaleGradient::new(".*", 1e6));
    assert!((largest(steps(&clipped_first)) - limit * 1e6).abs() < 1e-6);
}

#[test]
fn norms_above_the_limit_are_clipped_to_it() {
    let norm = |all: &[Vec<f64>]| all.concat().iter().map(|d| d * d).sum::<f64>().sqrt();
    let plain = steps(&Sgd::new(1.0));
    let (free, bound) = (norm(&plain) * 1.5, norm(&plain) * 0.5);
    assert_close(
        "free",
        &steps(&Sgd::new(1.0).process(GlobalNormClip::new(free))).concat(),
        &plain.concat(),
        1e-12,
    );
    let clipped = steps(&Sgd::new(1.0).process(GlobalNormClip::new(bound)));
    assert_close("bound", &clipped.concat(), &times(&plain.concat(), 0.5), 1e-12);
}

#[test]
fn summaries_are_added_once_per_variable() {
    let graph = Graph::new();
    let optimizer =
        Sgd::new(0.1).process(SummaryGradient::new().matching(".*/W")).process(SummaryGradient::new());
    build(&graph, DType::F32, &optimizer).unwrap();
    let made = graph.collection(MOVING_SUMMARIES).tensors.len();
    let names: Vec<String> = WEIGHTS.iter().map(|w| format!("{w}-grad/rms")).collect();
    assert_eq!(made, names.len());
    names.iter().for_each(|n| assert!(graph.tensor(n).is_ok(), "{n}"));
}

#[test]
fn the_summary_is_the_root_of_the_mean_square() {
    let graph = Graph::new();
    let plain = steps(&Sgd::new(1.0));
    let [_, train] = build(&graph, DType::F64, &Sgd::new(1.0).process(SummaryGradient::new())).unwrap();
    let rms = graph.tensor("fc0/W-grad/rms").unwrap();
    let net = Net::around(graph, &cpu(Isa::detect()), DType::F64, [Fetch::from(&rms), train]);
    let right = (plain[0].iter().map(|d| d * d).sum::<f64>() / plain[0].len() as f64).sqrt();
    assert_close("rms", &[net.step(0..1)], &[right], 1e-12);
}

fn refused(optimizer: &dyn Optimizer) -> Error {
    build(&Graph::new(), DType::F32, optimizer).unwrap_err()
}

#[test]
fn a_pattern_that_matches_nothing_is_an_error_at_its_line() {
    let line = line!() + 2;
    let all: [Box<dyn GradProcessor>; 4] = [
        Box::new(ScaleGradient::new("fc9/.*", 0.5)),
        Box::new(MapGradient::new("fc9/.*", |_, g| Some(g.clone()))),
        Box::new(FilterGradient::keep("fc9/.*")),
        Box::new(SummaryGradient::new().matching("fc9/.*")),
    ];
    for (k, processor) in all.into_iter().enumerate() {
        let e = refused(&Sgd::new(0.1).process(processor));
        assert_eq!(e.kind(), ErrorKind::Name);
        assert_mentions(&e, &["\"fc9/.*\"", "no variable"]);
        assert_eq!(e.site().unwrap().line, line + k as u32);
        assert!(e.to_string().contains(": fc0/W, fc0/b, fc1/W, fc1/b"), "{e}");
    }
}

#[test]
fn a_limit_that_is_not_positive_is_an_error() {
    for limit in [0.0, -1.0, f64::NAN] {
        let e = refused(&Sgd::new(0.1).process(GlobalNormClip::new(limit)));
        assert_mentions(&e, &["GlobalNormClip", "limit"]);
        let e = refused(&Sgd::new(0.1).process(ValueClip::new(limit)));
        assert_mentions(&e, &["ValueClip", "limit"]);
    }
}

#[test]
fn dropping_every_gradient_is_an_error() {
    let e = refused(&Sgd::new(0.1).process(ScaleGradient::new(".*", 0.0)));
    assert_eq!(e.kind(), ErrorKind::Gradient);
    assert_mentions(&e, &["Processed", "no gradient"]);
}

#[test]
fn a_norm_that_overflows_is_an_error() {
    let huge = MapGradient::new(".*", |_, g| Some(g * 1e25));
    let net = Net::new(DType::F32, &Sgd::new(0.1).process(huge).process(GlobalNormClip::new(1.0)));
    let before = net.variables();
    assert_eq!(net.try_step(0..1, 1.0).unwrap_err().kind(), ErrorKind::NotFinite);
    assert_eq!(net.variables(), before);
}
