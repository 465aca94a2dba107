//! The reference device: runs the graph in f64, one operation at a time, with the same guarantees
//! as any other device.

use std::sync::Arc;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{GLOBAL_VARIABLES, GradCx, OpDef, Spec, UPDATE_OPS};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::prelude::*;
use tensorpack::reference::{Array, EvaluateCx};
use tensorpack::runtime::{Clock, IntoFetch, StepProgram};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;
use tensorpack::{ErrorKind, Result};
use tensorpack_testing::assert_mentions;

const BOTH: [Device; 2] = [Device::Cpu(0), Device::Reference];

fn on(device: Device) -> SessionOptions {
    SessionOptions { device, seed: 7, threads: Some(1), ..SessionOptions::default() }
}

fn floats(sizes: &[usize], stream: u64) -> HostTensor {
    let rng = CounterRng::new(1, "reference");
    let values: Vec<f64> =
        (0..sizes.iter().product::<usize>() as u64).map(|i| rng.normal(stream, i)).collect();
    HostTensor::from_f64(DType::F64, sizes, &values).unwrap()
}

/// Every variable by name.
fn variables(session: &Session) -> Vec<(String, HostTensor)> {
    let names = session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|name| (name.clone(), session.read(&name).unwrap())).collect()
}

fn assert_close(what: &str, found: &HostTensor, right: &HostTensor, tolerance: f64) {
    assert_eq!((found.dtype(), found.sizes()), (right.dtype(), right.sizes()), "{what}");
    let (found, right) = (found.to_f64_vec(), right.to_f64_vec());
    let scale = right.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
    for (k, (a, b)) in found.iter().zip(&right).enumerate() {
        assert!((a - b).abs() <= tolerance * scale, "{what}: element {k} is {a}, the reference has {b}");
    }
}

#[test]
fn the_reference_device_is_selected_by_name() {
    assert_eq!("reference".parse::<Device>().unwrap(), Device::Reference);
    assert!("reference:0".parse::<Device>().is_err());
    let graph = Graph::new();
    let session = Session::with(graph.freeze().unwrap(), on("reference".parse().unwrap())).unwrap();
    assert!(format!("{session:?}").contains("reference"));
}

/// Convolution, normalization with running statistics, pooling, dropout, an average of the weights.
#[test]
fn five_training_steps_agree_with_the_cpu_engine() {
    let run = |device| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(6), Some(6), Some(2)]));
        let label = graph.placeholder(&TensorSpec::i32("label", [None]));
        // A bias before a normalization has a gradient of rounding errors only, which Adam would
        // amplify.
        let h = Conv2d::new(4, 3).no_bias().apply(&t, "conv", &x);
        let h = BatchNorm::new().apply(&t, "bn", &h).relu().max_pool(2).flatten(1).dropout(0.3);
        let logits = Linear::new(3).apply(&t, "fc", &h);
        let cost = logits.sparse_softmax_cross_entropy(&label).mean();
        let optimizer = Ema::new(Adam::new(0.05).process(GlobalNormClip::new(0.5)), 0.9);
        let step = minimize(&cost, &optimizer).unwrap();
        let updates = graph.collection_ops(UPDATE_OPS);
        let step = graph.group(&updates.iter().chain([&step]).collect::<Vec<_>>());
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let mut costs = Vec::new();
        for k in 0..5 {
            let (x, label) = (floats(&[5, 6, 6, 2], k), HostTensor::new([5], vec![0, 2, 1, 1, 0]).unwrap());
            costs.push(session.run(&[&cost, &step], &[("x", &x), ("label", &label)]).unwrap().remove(0));
        }
        (costs, variables(&session))
    };
    let [(costs, found), (right_costs, right)] = BOTH.map(run);
    for (k, (cost, right)) in costs.iter().zip(&right_costs).enumerate() {
        assert_close(&format!("cost {k}"), cost, right, 1e-11);
    }
    assert!(right.len() > 12, "Adam, batch normalization and Ema have variables of their own");
    for ((name, found), (_, right)) in found.iter().zip(&right) {
        assert_close(name, found, right, 1e-11);
    }
}

/// Values are f64 for any declared float dtype; only results are rounded.
#[test]
fn an_f32_graph_is_computed_in_f64() {
    let run = |device| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", []));
        let kept = (&x + 1e9) - 1e9;
        let narrow = x.cast(DType::Bf16).cast(DType::F32);
        let v = t.variable(VariableSpec::new("v", []).init(Init::ones()));
        let update = v.update(|v| v + 1e-9);
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let fed = HostTensor::scalar(1.0009f32);
        let got = session.run(&[&kept, &narrow], &[("x", &fed)]).unwrap();
        (0..1000).for_each(|_| drop(session.run(&[&update], &[]).unwrap()));
        [got[0].clone(), got[1].clone(), session.read("v").unwrap()].map(|t| t.to_scalar().unwrap())
    };
    let [engine, reference] = BOTH.map(run);
    assert_eq!(engine, [0.0, 1.0, 1.0]);
    let fed = f64::from(1.0009f32);
    assert!((reference[0] - fed).abs() < 1e-6, "{}", reference[0]);
    assert_eq!(reference[1], fed);
    assert!((reference[2] - 1.000001).abs() < 1e-7, "{}", reference[2]);
}

#[test]
fn a_written_variable_is_read_back() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    t.variable(VariableSpec::new("v", [2]).init(Init::ones()));
    t.variable(VariableSpec::new("n", []).dtype(DType::I64).init(Init::zeros()));
    let session = Session::with(graph.freeze().unwrap(), on(Device::Reference)).unwrap();
    for (name, value) in [
        ("v", HostTensor::new([2], vec![0.1f32, -3.0]).unwrap()),
        ("n", HostTensor::scalar((1i64 << 53) + 1)),
    ] {
        session.write(name, &value).unwrap();
        assert_eq!(session.read(name).unwrap(), value);
    }
    let e = session.write("v", &HostTensor::scalar(1.0f32)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
}

/// A variable is read as it was at the start of the run; updates compose in the order they were
/// built.
#[test]
fn updates_compose() {
    let run = |device| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let a = t.variable(VariableSpec::new("a", []).init(Init::Constant(2.0)));
        let b = t.variable(VariableSpec::new("b", []).init(Init::Constant(5.0)));
        let plus = a.update(|a| a + 1.0);
        let times = a.update(|a| a * b.value());
        let swap = b.assign(a.value());
        let between = a.current();
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let got = session.run(&[&times, &plus, &swap, a.value(), &between], &[]).unwrap();
        let left = ["a", "b"].map(|n| session.read(n).unwrap());
        let lone = session.run(&[&times, &between], &[]).unwrap();
        [got, left.to_vec(), lone].concat().iter().map(|t| t.to_scalar().unwrap()).collect::<Vec<f64>>()
    };
    for device in BOTH {
        assert_eq!(run(device), [2.0, 15.0, 15.0, 2.0, 30.0], "{device}");
    }
}

#[test]
fn non_finite_errors_match_the_cpu_engine() {
    let run = |device| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [Some(2)]));
        let w = t.variable(VariableSpec::new("w", [2]).dtype(DType::F64).init(Init::ones()));
        let count = VariableSpec::new("count", []).dtype(DType::F64).init(Init::zeros());
        let count = t.variable(count.non_trainable());
        let cost = (&x * w.value()).log().sum();
        let step = minimize(&cost, &Momentum::new(0.1, 0.9)).unwrap();
        let step = graph.group(&[&step, &count.update(|c| c + 1.0)]);
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let feed = |second: f64| HostTensor::new([2], vec![1.0, second]).unwrap();
        session.run(&[&step], &[("x", &feed(2.0))]).unwrap();
        let before = variables(&session);
        let e = session.run(&[&cost, &step], &[("x", &feed(0.0))]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
        assert_eq!(variables(&session), before, "{device}");
        session.run(&[&step], &[("x", &feed(2.0))]).unwrap();
        assert_ne!(variables(&session), before, "{device}");
        e.to_string()
    };
    let [engine, reference] = BOTH.map(run);
    assert_eq!(engine, reference);
    assert!(reference.contains("Log is not finite") && reference.contains(file!()), "{reference}");
}

/// Next values of variables are checked too, before any is written.
#[test]
fn an_update_that_overflows_changes_nothing() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let spec = |name: &str| VariableSpec::new(name, []).dtype(DType::F64).init(Init::Constant(1e300));
    let (large, other) = (t.variable(spec("large")), t.variable(spec("other")));
    let step = graph.group(&[&other.update(|v| v * 0.5), &large.update(|v| v * 1e10)]);
    let session = Session::with(graph.freeze().unwrap(), on(Device::Reference)).unwrap();
    let before = variables(&session);
    let e = session.run(&[&step], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert!(e.to_string().contains(file!()), "{e}");
    assert_eq!(variables(&session), before);
}

#[test]
fn errors_of_bad_feeds_and_fetches_match_the_cpu_engine() {
    let run = |device| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
        let y = graph.placeholder(&TensorSpec::f32("y", [None, Some(3)]));
        let sum = &x + &y;
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let ones =
            |sizes: &[usize]| HostTensor::from_f64(DType::F32, sizes, &vec![1.0; sizes.iter().product()]);
        let (two, three, wide) = (ones(&[2, 3]).unwrap(), ones(&[3, 3]).unwrap(), ones(&[2, 4]).unwrap());
        let nan = HostTensor::new([1, 3], vec![f32::NAN; 3]).unwrap();
        let feeds: [&[(&str, &HostTensor)]; 6] = [
            &[("x", &two)],
            &[("x", &two), ("y", &wide)],
            &[("x", &two), ("y", &three)],
            &[("x", &two), ("z", &two)],
            &[("x", &two), ("x", &two)],
            &[("x", &nan), ("y", &nan)],
        ];
        feeds.map(|feeds| session.run(&[&sum], feeds).unwrap_err().to_string())
    };
    let [engine, reference] = BOTH.map(run);
    assert_eq!(engine, reference);
}

/// Plain runs and step runs draw the same random bits as the CPU engine.
#[test]
fn random_numbers_match_the_cpu_engine() {
    let run = |device| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(3)]));
        let first = Random::uniform(0.0, 1.0).dtype(DType::F64).like(&x);
        let second = Random::uniform(0.0, 1.0).dtype(DType::F64).batch_axis(1).like(&x);
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let fed = floats(&[4, 3], 0);
        let feeds = [("x", &fed)];
        let plain = || session.run(&[&first, &second], &feeds).unwrap();
        let mut drawn = [plain(), plain()].concat();
        let mut program = StepProgram::new(&[&first, &second]);
        program.run(&session, Clock { global_step: 1, last_of_epoch: false }, &feeds).unwrap();
        drawn.extend(program.results().to_vec());
        drawn.extend(plain());
        drawn
    };
    let [engine, reference] = BOTH.map(run);
    assert_eq!(engine, reference);
    assert_ne!(reference[0], reference[2]);
}

/// Two towers with separate batches, dropout, and a layer with an all-reduce that is used twice.
#[test]
fn towers_all_reduce_in_training() {
    let run = |device| {
        let graph = Graph::new();
        let mut fetches: Vec<Tensor> = Vec::new();
        for i in 0..2 {
            let t = TowerContext::new(&graph, Mode::Training, i, 2);
            let x = graph.placeholder(&TensorSpec::new(format!("x{i}"), DType::F64, [None, Some(3)]));
            fetches.extend(t.build(|t| {
                let layer = BatchNorm::new().synchronized();
                let y = layer.apply(t, "bn", &x);
                let y = t.reuse(|t| layer.apply(t, "bn", &y.dropout(0.5).tanh()));
                let dx = gradients(&y.square().sum(), &[&x]).unwrap().remove(0).unwrap();
                [y, dx.clone(), t.all_reduce_mean("gradient", &dx.sum())]
            }));
        }
        let updates = graph.collection_ops(UPDATE_OPS);
        let update = graph.group(&updates.iter().collect::<Vec<_>>());
        assert!(!graph.collection(GLOBAL_VARIABLES).variables.is_empty());
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let (a, b) = (floats(&[4, 3], 0), floats(&[7, 3], 1));
        let wanted: Vec<&dyn IntoFetch> =
            fetches.iter().map(|f| f as &dyn IntoFetch).chain([&update as &dyn IntoFetch]).collect();
        let mut all = session.run(&wanted, &[("x0", &a), ("x1", &b)]).unwrap();
        all.extend(variables(&session).into_iter().map(|(_, value)| value));
        all
    };
    let [engine, reference] = BOTH.map(run);
    assert_eq!(engine.len(), 10);
    for (k, (found, right)) in engine.iter().zip(&reference).enumerate() {
        assert_close(&format!("number {k}"), found, right, 1e-11);
    }
}

#[test]
fn towers_that_sum_different_shapes_are_an_error_with_the_users_line() {
    for device in BOTH {
        let graph = Graph::new();
        let mut sums = Vec::new();
        for i in 0..2 {
            let t = TowerContext::new(&graph, Mode::Training, i, 2);
            let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), [None]));
            sums.push(t.build(|t| t.all_reduce_sum("sum", &x)));
        }
        let session = Session::with(graph.freeze().unwrap(), on(device)).unwrap();
        let fed = |n: usize| HostTensor::new([n], vec![1.0f32; n]).unwrap();
        let e = session.run(&[&sums[0]], &[("x0", &fed(2)), ("x1", &fed(3))]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
        assert!(e.message().contains("f32[2]") && e.message().contains("f32[3]"), "{e}");
        assert!(e.to_string().contains(file!()), "{e}");
        assert_eq!(session.run(&[&sums[0]], &[("x0", &fed(2)), ("x1", &fed(2))]).unwrap()[0], {
            HostTensor::new([2], vec![2.0f32; 2]).unwrap()
        });
    }
}

/// Doubles every element with a custom kernel, with or without a reference implementation.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Twice {
    evaluates: bool,
}

impl OpDef for Twice {
    fn name(&self) -> &str {
        "Twice"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy() * 2.0)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(TwiceKernel)))
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        match self.evaluates {
            true => cx.custom(&TwiceKernel),
            // Too few elements.
            false => Ok(vec![Array::zeros(cx.output_dtype(0), &[1])]),
        }
    }
}

#[derive(Debug)]
struct TwiceKernel;

impl CustomKernel for TwiceKernel {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        let x = inputs[0].as_slice::<f32>()?;
        outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    }
}

/// An operation without a reference implementation.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Lowered;

impl OpDef for Lowered {
    fn name(&self) -> &str {
        "Lowered"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0)])
    }
}

#[test]
fn custom_operations() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let good = Tensor::apply_one(Twice { evaluates: true }, &[&x]);
    let slope = gradients(&good.sum(), &[&x]).unwrap().remove(0).unwrap();
    let misshapen = Tensor::apply_one(Twice { evaluates: false }, &[&x]);
    let line = line!() + 1;
    let missing = Tensor::apply_one(Lowered, &[&x]);
    let session = Session::with(graph.freeze().unwrap(), on(Device::Reference)).unwrap();
    let fed = HostTensor::new([3], vec![1.0f32, -2.0, 0.5]).unwrap();
    let got = session.run(&[&good, &slope], &[("x", &fed)]).unwrap();
    assert_eq!(got[0].as_slice::<f32>().unwrap(), [2.0, -4.0, 1.0]);
    assert_eq!(got[1].as_slice::<f32>().unwrap(), [2.0; 3]);
    let e = session.run(&[&missing], &[("x", &fed)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert_mentions(&e, &["Lowered", "reference"]);
    assert_eq!(e.site().unwrap().line, line, "{e}");
    let e = session.run(&[&misshapen], &[("x", &fed)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert_mentions(&e, &["Twice", "evaluates"]);
}

#[test]
fn a_model_larger_than_memory_is_an_error() {
    let options = |bytes| SessionOptions { memory_limit: Some(bytes), ..on(Device::Reference) };
    let build = || {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(100)]));
        let y = Linear::new(100).apply(&t, "fc", &x);
        (graph.freeze().unwrap(), y)
    };
    let e = Session::with(build().0, options(1000)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory);
    let (graph, y) = build();
    let session = Session::with(graph, options(500_000)).unwrap();
    let run = |n: usize| session.run(&[&y], &[("x", &HostTensor::zeros(DType::F32, [n, 100]).unwrap())]);
    assert_eq!(run(1000).unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(run(2).unwrap()[0].sizes(), [2, 100]);
}

#[test]
fn forking_is_unsupported_and_the_plan_lists_the_nodes() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let y = x.exp().named("y");
    let session = Session::with(graph.freeze().unwrap(), on(Device::Reference)).unwrap();
    assert_eq!(session.fork(0, 2).unwrap_err().kind(), ErrorKind::Unsupported);
    let fed = HostTensor::new([2], vec![0.0f32; 2]).unwrap();
    let plan = session.plan_text(&[&y], &[("x", &fed)]).unwrap();
    assert!(plan.contains("y = Exp(x): f32[2]"), "{plan}");
}

/// Fewer bits have no mantissa to round, and f64 has 53.
#[test]
fn bits_of_stochastic_rounding_must_be_in_range() {
    use tensorpack::runtime::StochasticRounding;
    let session = |bits| {
        let stochastic_rounding = Some(StochasticRounding { bits, seed: 0 });
        let options = SessionOptions { stochastic_rounding, ..on(Device::Reference) };
        Session::with(Graph::new().freeze().unwrap(), options).map(drop)
    };
    for bits in [0, 1, 54, u32::MAX] {
        let e = session(bits).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        assert_mentions(&e, &[&bits.to_string(), "2", "53"]);
    }
    assert!(session(2).is_ok() && session(53).is_ok());
}
