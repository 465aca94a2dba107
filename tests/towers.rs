//! Several towers in one graph: each has its own plan, and they synchronize only at all-reduces.

use std::sync::Arc;
use std::time::Duration;
use tensorpack::graph::{OpDef, Spec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;
use tensorpack_testing::assert_mentions;

/// A small net with dropout; returns the tower's cost.
fn net(t: &TowerContext, x: &Tensor, y: &Tensor) -> Tensor {
    let h = Linear::new(6).relu().apply(t, "fc0", x).dropout(0.25);
    let out = Linear::new(1).apply(t, "fc1", &h);
    (out - y).square().mean()
}

struct Trained {
    session: Session,
    costs: Vec<Tensor>,
    step: Op,
}

/// Builds `towers` towers that share variables and average their gradients.
fn build(towers: usize, optimizer: &dyn Optimizer) -> Result<Trained> {
    let graph = Graph::new();
    let mut costs = Vec::new();
    let mut averaged: Vec<Gradient> = Vec::new();
    for i in 0..towers {
        let t = TowerContext::new(&graph, Mode::Training, i, towers);
        let x = graph.placeholder(&TensorSpec::new(format!("x{i}"), DType::F64, [None, Some(3)]));
        let y = graph.placeholder(&TensorSpec::new(format!("y{i}"), DType::F64, [None, Some(1)]));
        let cost = t.build(|t| net(t, &x, &y));
        let variables: Vec<Variable> = graph
            .collection(tensorpack::graph::TRAINABLE_VARIABLES)
            .variables
            .iter()
            .map(|&v| graph.variable_handle(v))
            .collect();
        let values: Vec<&Tensor> = variables.iter().map(Variable::value).collect();
        let gradients = gradients(&cost, &values)?;
        averaged = t.build(|t| {
            let mean = |(v, g): (Variable, Option<Tensor>)| {
                let g = g.expect("the cost depends on every variable");
                let name = format!("average/{}", v.name());
                Gradient::new(v, t.all_reduce_mean(&name, &g))
            };
            variables.into_iter().zip(gradients).map(mean).collect()
        });
        costs.push(cost);
        if i == 0 {
            let step = apply_gradients(optimizer, &graph, &averaged)?;
            graph.add_op_to_collection("step", &step);
        }
    }
    assert_eq!(averaged.len(), 4);
    let step = graph.collection_ops("step").remove(0);
    let session = Session::with(graph.freeze()?, SessionOptions { seed: 5, ..SessionOptions::default() })?;
    Ok(Trained { session, costs, step })
}

fn data(rows: std::ops::Range<u64>) -> (HostTensor, HostTensor) {
    let rng = CounterRng::new(3, "data");
    let n = (rows.end - rows.start) as usize;
    let x = (rows.start * 3..rows.end * 3).map(|i| rng.normal(0, i)).collect();
    let y = rows.map(|i| rng.normal(1, i)).collect();
    (HostTensor::new([n, 3], x).unwrap(), HostTensor::new([n, 1], y).unwrap())
}

fn train(towers: usize, steps: u64, optimizer: &dyn Optimizer) -> Vec<HostTensor> {
    let trained = build(towers, optimizer).unwrap();
    const TOTAL: u64 = 24;
    let each = TOTAL / towers as u64;
    for step in 0..steps {
        let batches: Vec<_> = (0..towers as u64)
            .map(|i| data(step * TOTAL + i * each..step * TOTAL + (i + 1) * each))
            .collect();
        let names: Vec<(String, String)> = (0..towers).map(|i| (format!("x{i}"), format!("y{i}"))).collect();
        let feeds: Vec<(&str, &HostTensor)> = names
            .iter()
            .zip(&batches)
            .flat_map(|((x, y), (a, b))| [(x.as_str(), a), (y.as_str(), b)])
            .collect();
        trained.session.run(&[&trained.step, &trained.costs[0]], &feeds).unwrap();
    }
    trained.session.graph().variables().iter().map(|v| trained.session.read(&v.name).unwrap()).collect()
}

/// Includes dropout: the rows of random tensors continue from tower to tower.
#[test]
fn towers_together_equal_one_big_batch() {
    let clipped = Momentum::new(0.1, 0.9).process(GlobalNormClip::new(0.5));
    for optimizer in [Sgd::new(0.1).boxed(), Accumulate::new(clipped, 3).boxed()] {
        let one = train(1, 10, &optimizer);
        for towers in [2, 3, 4] {
            for (a, b) in one.iter().zip(&train(towers, 10, &optimizer)) {
                let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
                let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
                let difference: Vec<f64> = a.iter().zip(&b).map(|(x, y)| x - y).collect();
                let off = norm(&difference);
                assert!(off <= 1e-12 * norm(&a), "{towers} towers with {optimizer:?} differ by {off}");
            }
        }
    }
}

#[test]
fn towers_may_have_different_batches() {
    let trained = build(2, &Sgd::new(0.1)).unwrap();
    let ((x0, y0), (x1, y1)) = (data(0..4), data(4..11));
    let feeds = [("x0", &x0), ("y0", &y0), ("x1", &x1), ("y1", &y1)];
    let costs = trained.session.run(&[&trained.costs[0], &trained.costs[1], &trained.step], &feeds).unwrap();
    assert_eq!(costs.len(), 2);
    assert_ne!(costs[0], costs[1]);
}

/// Sums of bf16 and f16 tensors are computed in f32 and rounded once, and so are means.
#[test]
fn sums_of_narrow_floats_over_towers_are_rounded_once() {
    // In bf16, 257.5 rounds to 258. Rounded after every addition, the sum would stay 256.
    let summed = [256.0f32, 0.5, 1.0];
    // 258.90625 / 3 rounds to 86.5. With a sum rounded to 258 the mean would be 86.
    let averaged = [258.0f32, 0.5, 0.40625];
    rounded_once(DType::Bf16, summed, averaged, [258.0, 86.5]);
    // In f16, 65504 + 15 rounds to 65504, and the next sum, 65535, is infinite, but its third is not.
    let averaged = [65504.0f32, 15.0, 16.0];
    // 2049.5 rounds to 2050. Rounded after every addition, the sum would stay 2048.
    rounded_once(DType::F16, [2048.0f32, 0.5, 1.0], averaged, [2050.0, 21840.0]);
}

fn rounded_once(dtype: DType, summed: [f32; 3], averaged: [f32; 3], expected: [f64; 2]) {
    for device in ["cpu", "reference"] {
        let graph = Graph::new();
        let results: Vec<[Tensor; 2]> = (0..3)
            .map(|i| {
                let t = TowerContext::new(&graph, Mode::Training, i, 3);
                let part = |of: &[f32; 3]| graph.constant(HostTensor::scalar(of[i])).cast(dtype);
                t.build(|t| {
                    [t.all_reduce_sum("sum", &part(&summed)), t.all_reduce_mean("mean", &part(&averaged))]
                })
            })
            .collect();
        let options = SessionOptions { device: device.parse().unwrap(), ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        for [sum, mean] in &results {
            assert_eq!((sum.dtype(), mean.dtype()), (dtype, dtype));
            let got = session.run(&[sum, mean], &[]).unwrap();
            assert_eq!([0, 1].map(|i| got[i].to_scalar().unwrap()), expected, "{dtype} on {device}");
        }
    }
}

/// A random tensor that is built outside of towers has one value for all of them.
#[test]
fn a_random_tensor_outside_of_towers_is_the_same_in_all() {
    for device in ["cpu", "reference"] {
        let graph = Graph::new();
        let noise = Random::uniform(0.0, 1.0).shape(&graph, &[3]);
        let seen: Vec<Tensor> =
            (0..2).map(|i| TowerContext::new(&graph, Mode::Training, i, 2).build(|_| &noise * 2.0)).collect();
        let options = SessionOptions { device: device.parse().unwrap(), ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        let got = session.run(&[&noise, &seen[0], &seen[1]], &[]).unwrap();
        let twice: Vec<f64> = got[0].to_f64_vec().iter().map(|v| v * 2.0).collect();
        assert_eq!([got[1].to_f64_vec(), got[2].to_f64_vec()], [twice.clone(), twice], "{device}");
    }
}

/// If one tower needs an all-reduce, all towers compute it; otherwise none does.
#[test]
fn a_fetch_includes_the_all_reduces_it_needs() {
    let trained = build(2, &Sgd::new(0.1)).unwrap();
    let (x, y) = data(0..4);
    let alone = [("x0", &x), ("y0", &y)];
    assert_eq!(trained.session.run(&[&trained.costs[0]], &alone).unwrap().len(), 1);
    let e = trained.session.run(&[&trained.step], &alone).unwrap_err();
    assert!(e.message().contains("x1 must be fed") || e.message().contains("y1 must be fed"), "{e}");
}

#[test]
fn towers_that_disagree_are_an_error_before_anything_runs() {
    let graph = Graph::new();
    let mut sums = Vec::new();
    for i in 0..2 {
        let t = TowerContext::new(&graph, Mode::Training, i, 2);
        let x = graph.constant(HostTensor::scalar(1.0f32));
        sums.push(t.build(|t| match i {
            0 => {
                let a = t.all_reduce_sum("a", &x);
                t.all_reduce_sum("b", &a)
            }
            _ => {
                let b = t.all_reduce_sum("b", &x);
                t.all_reduce_sum("a", &b)
            }
        }));
    }
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let e = session.run(&[&sums[0]], &[]).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Graph);
    assert!(e.message().contains("a in tower 0") && e.message().contains("b in tower 1"), "{e}");
}

#[test]
fn a_variable_updated_by_two_towers_is_an_error() {
    let graph = Graph::new();
    let mut updates = Vec::new();
    for i in 0..2 {
        let t = TowerContext::new(&graph, Mode::Training, i, 2);
        updates.push(t.build(|t| {
            let v = t.variable(VariableSpec::new("v", []).init(Init::zeros()));
            v.update(|v| v + 1.0)
        }));
    }
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let e = session.run(&[&updates[0], &updates[1]], &[]).unwrap_err();
    assert_mentions(&e, &["variable v", "two towers"]);
}

/// A kernel that fails, or sleeps, in one tower.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Trouble {
    sleep: bool,
}

impl OpDef for Trouble {
    fn name(&self) -> &str {
        "Trouble"
    }
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(Trouble { sleep: self.sleep })))
    }
}

impl CustomKernel for Trouble {
    fn run(&self, _: &[HostTensor], _: &mut [HostTensor]) -> Result<()> {
        if self.sleep {
            std::thread::sleep(Duration::from_secs(20));
            return Ok(());
        }
        Err(Error::argument("the sensor is unplugged"))
    }
}

const SUMS: usize = 4;

/// Runs a session twice, with a fault in the second tower before one of its all-reduces.
fn run_with_fault(sleep: bool, deadline: Duration, before: usize) -> Result<[Result<Vec<HostTensor>>; 2]> {
    let graph = Graph::new();
    let mut totals = Vec::new();
    for i in 0..2 {
        let t = TowerContext::new(&graph, Mode::Training, i, 2);
        let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), []));
        totals.push(t.build(|t| {
            (0..SUMS).fold(x, |x, k| {
                let x = if (i, k) == (1, before) { Tensor::apply_one(Trouble { sleep }, &[&x]) } else { x };
                t.all_reduce_sum(&format!("total{k}"), &x)
            })
        }));
    }
    let options = SessionOptions { deadline, ..SessionOptions::default() };
    let session = Session::with(graph.freeze()?, options)?;
    let one = HostTensor::scalar(1.0f32);
    Ok([(); 2].map(|()| session.run(&[&totals[0]], &[("x0", &one), ("x1", &one)])))
}

/// The error affects only its run; the session remains usable.
#[test]
fn an_error_in_one_tower_ends_all_with_its_cause() {
    for before in 0..SUMS {
        for e in run_with_fault(false, Duration::from_secs(60), before).unwrap() {
            let e = e.unwrap_err();
            assert!(e.message().contains("the sensor is unplugged"), "{e}");
        }
    }
}

#[test]
fn a_tower_that_misses_the_deadline_is_an_error_that_names_the_all_reduce() {
    let late = |before: usize| {
        let runs = run_with_fault(true, Duration::from_secs(2), before).unwrap();
        let [e, again] = runs.map(Result::unwrap_err);
        assert_mentions(&e, &["tower 0", "2 s", &format!("total{before}")]);
        assert!(e.site().is_some_and(|s| s.file.ends_with("towers.rs")), "{e}");
        assert_mentions(&e, &["tower 1", "tower1/Trouble", "tests/towers.rs"]);
        // The other tower may still be running, so the session cannot be used any more.
        assert_eq!(e.to_string(), again.to_string());
    };
    std::thread::scope(|s| (0..SUMS).for_each(|before| drop(s.spawn(move || late(before)))));
}

/// An update reads the values at the start of the run, even if another tower updates the variable
/// at the same time.
#[test]
fn updates_of_one_tower_read_start_values_of_another() {
    let graph = Graph::new();
    let first = TowerContext::new(&graph, Mode::Training, 0, 2);
    let second = TowerContext::new(&graph, Mode::Training, 1, 2);
    let w = first.build(|t| t.variable(VariableSpec::new("w", [1000]).init(Init::ones())));
    let copy = second.build(|t| t.variable(VariableSpec::new("copy", [1000]).init(Init::zeros()).local()));
    let change = first.build(|_| w.update(|w| w * 3.0));
    let follow = second.build(|_| copy.update(|c| c + w.value()));
    let both = graph.group(&[&change, &follow]);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for _ in 0..3 {
        session.run(&[&both], &[]).unwrap();
    }
    assert_eq!(session.read("w").unwrap().as_slice::<f32>().unwrap()[999], 27.0);
    assert_eq!(session.read("copy").unwrap().as_slice::<f32>().unwrap(), [1.0f32 + 3.0 + 9.0; 1000]);
}
