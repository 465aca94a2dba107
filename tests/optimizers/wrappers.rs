//! Parameter groups, post-processing, moving averages, several optimizers in one graph, invalid
//! settings, and failing steps.

use super::net::{Net, WEIGHTS, assert_close, build};
use tensorpack::graph::{Graph, Init, TensorSpec, VariableSpec};
use tensorpack::nn::Linear;
use tensorpack::optim::gradproc::{FilterGradient, GlobalNormClip, ValueClip};
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Lamb, Momentum, Optimizer, ParamGroups, PostProcess, RmsProp, Sgd,
    Swa, minimize,
};
use tensorpack::runtime::Session;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor, Result};

#[test]
fn a_failed_step_changes_no_slot() {
    let all: Vec<Box<dyn Optimizer>> = vec![
        Momentum::new(0.1, 0.9).nesterov().boxed(),
        RmsProp::new(0.01).momentum(0.9).centered().boxed(),
        Adagrad::new(0.1).boxed(),
        AdamW::new(0.01).boxed(),
        Lamb::new(0.01).boxed(),
        Adam::new(0.01).process(ValueClip::new(0.1)).boxed(),
        Adam::new(0.01).process(GlobalNormClip::new(0.1)).boxed(),
        ParamGroups::new(Adam::new(0.01)).group(".*/W", |g| g.rate(0.5).decay(0.1)).boxed(),
        PostProcess::new(Adam::new(0.01), |_, w| Some(w.clip(-0.1, 0.1))).boxed(),
        Ema::new(Adam::new(0.01), 0.9).boxed(),
        Swa::new(Adam::new(0.01), 1).every(2).boxed(),
        Accumulate::new(Adam::new(0.01), 2).boxed(),
    ];
    for optimizer in all {
        let (tried, spared) = (Net::new(DType::F32, &*optimizer), Net::new(DType::F32, &*optimizer));
        for step in 0..6 {
            if step == 0 || step == 3 {
                let before = tried.variables();
                let e = tried.try_step(step..step + 1, 0.0).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::NotFinite, "{optimizer:?}: {e}");
                assert_eq!(tried.variables(), before, "{optimizer:?}");
            }
            tried.step(step..step + 1);
            spared.step(step..step + 1);
        }
        assert_eq!(tried.variables(), spared.variables(), "{optimizer:?}");
    }
}

#[test]
fn groups_nest_and_the_first_match_applies() {
    let net = |o: &dyn Optimizer| {
        let net = Net::new(DType::F64, o);
        net.steps(0..3);
        net
    };
    let nested = ParamGroups::new(ParamGroups::new(Sgd::new(0.4)).group("fc0/.*", |g| g.rate(0.5)))
        .group("fc0/W", |g| g.rate(0.5))
        .group("fc.*", |g| g.rate(0.0));
    let (nested, slow) = (net(&nested), net(&Sgd::new(0.1).process(FilterGradient::keep("fc0/W"))));
    for w in WEIGHTS {
        assert_close(w, &nested.read(w), &slow.read(w), 1e-12);
    }
}

#[test]
fn post_processing_sees_updated_values() {
    let rule = |v: &tensorpack::graph::Variable, w: &tensorpack::graph::Tensor| {
        v.name().ends_with('W').then(|| w.clip(-0.01, 0.01))
    };
    let (plain, clipped) =
        (Net::new(DType::F64, &Sgd::new(0.5)), Net::new(DType::F64, &PostProcess::new(Sgd::new(0.5), rule)));
    plain.step(0..1);
    clipped.step(0..1);
    let limited: Vec<f64> = plain.read("fc0/W").iter().map(|w| w.clamp(-0.01, 0.01)).collect();
    assert_close("fc0/W", &clipped.read("fc0/W"), &limited, 1e-12);
    assert_close("fc0/b", &clipped.read("fc0/b"), &plain.read("fc0/b"), 1e-12);
}

#[test]
fn averages_come_in_pairs_with_their_variables() {
    let graph = Graph::new();
    let optimizer = Ema::new(Sgd::new(0.5).process(FilterGradient::keep(".*/W")), 0.5);
    build(&graph, DType::F64, &optimizer).unwrap();
    let pairs = Ema::pairs(&graph);
    let names: Vec<(&str, &str)> = pairs.iter().map(|(v, e)| (v.name(), e.name())).collect();
    let right =
        [("fc0/W", "EMA/fc0/W"), ("fc0/b", "EMA/fc0/b"), ("fc1/W", "EMA/fc1/W"), ("fc1/b", "EMA/fc1/b")];
    assert_eq!(names, right);
    // The average of a constant is the constant.
    let net = Net::new(DType::F64, &optimizer);
    net.steps(0..3);
    assert_close("fc0/b", &net.read("EMA/fc0/b"), &net.read("fc0/b"), 1e-12);
    assert_ne!(net.read("EMA/fc0/W"), net.read("fc0/W"));
}

#[test]
fn stochastic_weight_averaging_is_a_mean_of_weights() {
    let net = Net::new(DType::F64, &Swa::new(Sgd::new(0.5), 2).every(3));
    let mut taken: Vec<Vec<f64>> = Vec::new();
    for step in 0..12 {
        net.step(step..step + 1);
        let w = net.read("fc0/W");
        if step < 2 {
            assert_eq!(net.read("EMA/fc0/W"), w, "before the first value");
            continue;
        }
        if (step - 2) % 3 == 0 {
            taken.push(w);
        }
        let mean = |i: usize| taken.iter().map(|w| w[i]).sum::<f64>() / taken.len() as f64;
        let means: Vec<f64> = (0..taken[0].len()).map(mean).collect();
        assert_close("EMA/fc0/W", &net.read("EMA/fc0/W"), &means, 1e-12);
    }
    assert_eq!(taken.len(), 4);
}

#[test]
fn an_averaged_tower_reads_averages() -> Result<()> {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(6)]));
    let model = |t: &TowerContext| Linear::new(2).apply(t, "fc", &x);
    let cost = model(&TowerContext::training(&graph)).square().mean();
    let train = minimize(&cost, &Ema::new(Sgd::new(0.5), 0.9))?;
    let plain = model(&TowerContext::inference(&graph));
    let averaged = model(&TowerContext::inference(&graph).averaged());
    let session = Session::new(graph.freeze()?)?;
    let batch = HostTensor::new([1, 6], vec![1.0f32; 6])?;
    (0..3).for_each(|_| drop(session.run(&[&train], &[("x", &batch)]).unwrap()));
    let run = |y| session.run(&[y], &[("x", &batch)]).unwrap()[0].to_f64_vec();
    let of_averages = run(&averaged);
    assert_ne!(of_averages, run(&plain));
    for name in ["fc/W", "fc/b"] {
        session.write(name, &session.read(&format!("EMA/{name}"))?)?;
    }
    assert_eq!(of_averages, run(&plain));
    Ok(())
}

#[test]
fn an_averaged_tower_without_averages_is_an_error_at_its_line() {
    let graph = Graph::new();
    let line = line!() + 1;
    let t = TowerContext::inference(&graph).averaged();
    t.variable(VariableSpec::new("w", [3]));
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("moving average"), "{e}");
    assert_eq!((e.kind(), e.site().unwrap().line), (ErrorKind::Graph, line));
}

#[test]
fn averages_follow_clipped_weights() {
    let clip = |o: Sgd| PostProcess::new(o, |_, w| Some(w.clip(-0.01, 0.01)));
    let net = Net::new(DType::F64, &Ema::new(clip(Sgd::new(0.5)), 0.0));
    net.step(0..1);
    for w in WEIGHTS {
        assert_eq!(net.read(&format!("EMA/{w}")), net.read(w), "{w}");
    }
}

#[test]
fn two_optimizers_in_a_graph_have_separate_state() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let w = t.scope("made", |t| t.variable(VariableSpec::new("w", [3])));
    let (near, far) = ((w.value() - 1.0).square().sum(), (w.value() + 9.0).square().sum());
    let first = minimize(&near, &Adam::new(0.1)).unwrap();
    let second = t.scope("second", |_| minimize(&far, &Adam::new(0.2)).unwrap());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let names: Vec<&str> = session.graph().variables().iter().map(|v| v.name.as_str()).collect();
    for name in ["made/w/adam_m", "made/w/adam_m_1", "adam_beta1_power", "adam_beta1_power_1"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let read = |name: &str| session.read(name).unwrap().to_f64_vec();
    let before = read("made/w/adam_m_1");
    session.run(&[&first], &[]).unwrap();
    assert_eq!(read("made/w/adam_m_1"), before);
    session.run(&[&second], &[]).unwrap();
    assert_ne!(read("made/w/adam_m_1"), before);
}

#[test]
fn settings_out_of_range_are_errors() {
    let all: [(Box<dyn Optimizer>, &str); 13] = [
        (Momentum::new(0.1, 1.0).boxed(), "Momentum: the momentum is 1,"),
        (RmsProp::new(0.1).alpha(-0.1).boxed(), "RmsProp: alpha is -0.1,"),
        (
            Adagrad::new(0.1).initial_accumulator_value(-1.0).boxed(),
            "Adagrad: initial_accumulator_value is -1,",
        ),
        (Adam::new(0.1).betas(1.5, 0.9).boxed(), "Adam: beta1 is 1.5,"),
        (AdamW::new(0.1).betas(0.9, 1.0).boxed(), "AdamW: beta2 is 1,"),
        (Lamb::new(0.1).betas(0.9, f64::NAN).boxed(), "Lamb: beta2 is NaN,"),
        (Ema::new(Sgd::new(0.1), 1.0).boxed(), "Ema: the decay is 1,"),
        (Swa::new(Sgd::new(0.1), 1).every(0).boxed(), "Swa: the number of steps between values is 0,"),
        (Accumulate::new(Sgd::new(0.1), 0).boxed(), "Accumulate: the number of steps is 0,"),
        (
            ParamGroups::new(Sgd::new(0.1)).group("fc.*", |g| g.rate(f64::NAN)).boxed(),
            "ParamGroups: a rate is NaN,",
        ),
        (Sgd::new(f64::INFINITY).boxed(), "Rate: the learning rate is inf,"),
        (AdamW::new(0.1).decay(-0.1).boxed(), "AdamW: the weight decay is -0.1,"),
        (ParamGroups::new(Sgd::new(0.1)).group("fc(", |g| g).boxed(), "ParamGroups: \"fc(\""),
    ];
    for (optimizer, message) in all {
        let e = build(&Graph::new(), DType::F32, &*optimizer).unwrap_err();
        assert!(e.message().starts_with(message), "{e}");
        assert!(e.site().unwrap().file.starts_with("tests/optimizers/"), "{e}");
    }
}

#[test]
fn a_variable_has_one_average() {
    let all: [Box<dyn Optimizer>; 3] = [
        Swa::new(Ema::new(Sgd::new(0.1), 0.9), 1).boxed(),
        Ema::new(Swa::new(Sgd::new(0.1), 1), 0.9).boxed(),
        Ema::new(Ema::new(Sgd::new(0.1), 0.9), 0.99).boxed(),
    ];
    for optimizer in all {
        let e = build(&Graph::new(), DType::F32, &*optimizer).unwrap_err();
        assert!(e.message().contains("has a moving average already"), "{e}");
        assert!(e.to_string().contains("only one of `Ema` and `Swa`"), "{e}");
    }
}

#[test]
fn a_non_scalar_rate_is_an_error() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let w = t.variable(VariableSpec::new("w", [3]));
    let e = minimize(&w.square().sum(), &Sgd::new(w.value())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.message().contains("learning rate") && e.message().contains("[3]"), "{e}");
}

#[test]
fn variables_may_be_of_any_size() {
    let all: Vec<Box<dyn Optimizer>> = vec![
        Momentum::new(0.1, 0.9).boxed(),
        RmsProp::new(0.01).centered().momentum(0.5).boxed(),
        Adagrad::new(0.1).boxed(),
        AdamW::new(0.01).boxed(),
        Lamb::new(0.01).process(GlobalNormClip::new(1.0)).boxed(),
        Ema::new(Accumulate::new(Adam::new(0.01), 2), 0.9).boxed(),
    ];
    for optimizer in all {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let sizes: [&[usize]; 5] = [&[], &[1], &[0], &[7], &[2, 3]];
        let spec = |(k, sizes): (usize, &&[usize])| {
            VariableSpec::new(format!("w{k}"), *sizes).dtype(DType::F64).init(Init::Constant(2.0))
        };
        let weights: Vec<_> = sizes.iter().enumerate().map(|k| t.variable(spec(k))).collect();
        let cost = weights.iter().map(|w| w.square().sum()).reduce(|a, b| a + b).unwrap();
        let train = minimize(&cost, &*optimizer).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        (0..4).for_each(|_| drop(session.run(&[&train], &[]).unwrap()));
        // All elements start equal and have the same gradient; only the norms of the variables
        // differ.
        let read = |k: usize| session.read(&format!("w{k}")).unwrap().to_f64_vec();
        assert!(read(0)[0] < 2.0, "{optimizer:?}");
        for k in 1..sizes.len() {
            assert_close(&format!("{optimizer:?}: w{k}"), &read(k), &vec![read(0)[0]; read(k).len()], 1e-12);
        }
    }
}
