//! Elementwise updates become one pass over all variables and their slots.

use super::net::build;
use tensorpack::graph::{Graph, Init, TensorSpec, VariableSpec};
use tensorpack::optim::gradproc::GlobalNormClip;
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Momentum, Optimizer, PostProcess, RmsProp, Schedule, Sgd, minimize,
};
use tensorpack::runtime::Session;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// Returns the commits of a plan that touch more than scalars, and the text of the whole plan.
fn commits(optimizer: &dyn Optimizer) -> (Vec<String>, String) {
    let graph = Graph::new();
    let [cost, train] = build(&graph, DType::F32, optimizer).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let x = HostTensor::zeros(DType::F32, [4, 6]).unwrap();
    let label = HostTensor::zeros(DType::I32, [4]).unwrap();
    let divisor = HostTensor::zeros(DType::F32, []).unwrap();
    let text =
        session.plan_text(&[&cost, &train], &[("x", &x), ("label", &label), ("divisor", &divisor)]).unwrap();
    let is_scalar = |v: usize| session.graph().variables()[v].sizes.is_empty();
    let over_scalars = |l: &str| {
        let (_, variables) = l.split_once(" variable").expect("a commit is to variables");
        let numbers = variables.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        numbers.map(|n| n.parse().unwrap()).all(is_scalar)
    };
    let commits = text.lines().filter(|l| l.starts_with("commit") && !over_scalars(l));
    (commits.map(String::from).collect(), text)
}

#[test]
fn one_pass_for_all_variables() {
    let all: Vec<Box<dyn Optimizer>> = vec![
        Momentum::new(0.1, 0.9).boxed(),
        Momentum::new(Schedule::cosine(0.1, 0.0, 100), 0.9).nesterov().boxed(),
        RmsProp::new(0.1).momentum(0.9).centered().boxed(),
        Adagrad::new(0.1).boxed(),
        Adam::new(0.1).boxed(),
        AdamW::new(0.1).boxed(),
        Momentum::new(0.1, 0.9).process(GlobalNormClip::new(1.0)).boxed(),
        PostProcess::new(Adam::new(0.1), |_, w| Some(w.clip(-0.01, 0.01))).boxed(),
        Accumulate::new(AdamW::new(0.1), 4).boxed(),
        Accumulate::new(Momentum::new(0.1, 0.9), 4).boxed(),
        Accumulate::new(RmsProp::new(0.1).momentum(0.9).centered(), 4).boxed(),
        Accumulate::new(Adagrad::new(0.1), 4).boxed(),
        Ema::new(Adam::new(0.1), 0.99).boxed(),
        Ema::new(Accumulate::new(Adam::new(0.1), 4), 0.99).debiased().boxed(),
    ];
    for optimizer in all {
        let (commits, text) = commits(&*optimizer);
        let one_pass = matches!(&commits[..], [only] if only.matches('[').count() == 4);
        assert!(one_pass, "{optimizer:?} has the plan\n{text}");
    }
}

/// A variable of one element is fused with its larger neighbors, whatever scalars they read.
#[test]
fn small_variables_do_not_split_the_pass() {
    let shapes: [&[usize]; 6] = [&[7], &[1], &[], &[1, 1], &[2, 3], &[1]];
    for by_variable in [false, true] {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let weights: Vec<_> = (0..shapes.len())
            .map(|k| t.variable(VariableSpec::new(format!("w{k}"), shapes[k]).init(Init::ones())))
            .collect();
        let x = graph.placeholder(&TensorSpec::f32("x", []));
        let cost = weights.iter().map(|w| (w.value() * &x).sin().sum()).reduce(|a, b| a + b).unwrap();
        let optimizer = match by_variable {
            true => Sgd::new(t.hyper_param("rate", 0.1)),
            false => Sgd::new(Schedule::cosine(0.1, 0.0, 100)),
        };
        let train = minimize(&cost, &optimizer.process(GlobalNormClip::new(1.0))).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let text = session.plan_text(&[&train], &[("x", &HostTensor::scalar(1.0f32))]).unwrap();
        let commits = text.lines().filter(|l| l.starts_with("commit"));
        let joined =
            commits.map(|l| l.split(" over variables ").nth(1).map_or(0, |v| v.matches('[').count())).max();
        assert_eq!(joined, Some(shapes.len()), "{text}");
    }
}
