//! Fusion does not change the results of random graphs. Compares runs that fetch only the outputs,
//! some intermediate results, or all of them, and runs with a barrier after every operation, which
//! prevents fusion. Half of the float graphs include gradients.

use super::graph_builder::{Choices, GraphBuilder, for_random_graphs};
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Init, Tensor, TensorSpec, VariableSpec};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// A session with a random graph, and its feeds.
struct RandomGraph {
    session: Session,
    feeds: Vec<(String, HostTensor)>,
    /// Every result of every operation.
    all: Vec<Fetch>,
    /// The results that no operation reads.
    outputs: Vec<Fetch>,
}

fn draw(choices: &[u32], dtype: DType, isa: Isa, unfused: bool) -> Result<RandomGraph, String> {
    let c = &mut Choices(choices.iter());
    let rng = CounterRng::new(u64::from(choices[0]), "fusion");
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let (mut feeds, mut inputs) = (Vec::new(), Vec::new());
    let base: Vec<usize> = (0..3).map(|_| c.pick(&[3, 4, 1, 5, 2, 4, 3, 17, 6, 4, 1, 33, 5, 0])).collect();
    let shapes = [base.clone(), base[1..].to_vec(), base[2..].to_vec(), vec![base[2], base[1]], base.clone()];
    for (i, size) in shapes.iter().enumerate() {
        let n: usize = size.iter().product();
        let value = |k: usize| {
            let v = rng.uniform(i as u64, k as u64) * 4.0 - 2.0;
            if dtype.is_float() { v } else { (v * 3.0).round() }
        };
        let values = HostTensor::from_f64(dtype, size.clone(), &(0..n).map(value).collect::<Vec<_>>());
        let values = values.map_err(|e| e.to_string())?;
        if i == 3 {
            let spec =
                VariableSpec::new("v", size.clone()).dtype(dtype).init(Init::Value(values)).non_trainable();
            inputs.push(t.variable(spec).value().clone());
            continue;
        }
        let spec = TensorSpec::new(format!("x{i}"), dtype, size.iter().map(|&n| Some(n)).collect::<Vec<_>>());
        inputs.push(graph.placeholder(&spec));
        feeds.push((spec.name.clone(), values));
    }
    let mut builder = GraphBuilder::new(&graph, dtype, inputs.clone(), unfused);
    let steps = 6 + c.below(14);
    (0..steps).for_each(|_| builder.add_op(c));
    let mut outputs = builder.outputs();
    if dtype.is_float() && c.below(2) == 1 {
        let cost = outputs.iter().map(|t| (t * builder.constant(0.5)).tanh().sum()).reduce(|a, b| a + b);
        let xs: Vec<&Tensor> = inputs.iter().collect();
        let found = cost.map_or(Ok(Vec::new()), |cost| gradients(&cost, &xs)).map_err(|e| e.to_string())?;
        outputs.extend(found.into_iter().flatten());
    }
    let outputs: Vec<Fetch> = outputs.iter().map(IntoFetch::fetch).collect();
    let frozen = graph.freeze().map_err(|e| e.to_string())?;
    let named = |n: &tensorpack::graph::Node| frozen.fetch(&n.name).map_err(|e| e.to_string());
    let all = frozen.nodes().iter().map(named).collect::<Result<Vec<Fetch>, String>>()?;
    let options =
        SessionOptions { isa: Some(isa), threads: Some(1 + c.below(2)), ..SessionOptions::default() };
    let session = Session::with(frozen, options).map_err(|e| e.to_string())?;
    Ok(RandomGraph { session, feeds, all, outputs })
}

impl RandomGraph {
    fn run(&self, fetches: &[Fetch]) -> Result<Vec<HostTensor>, String> {
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let what: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
        self.session.run(&what, &feeds).map_err(|e| format!("{e}\n{}", self.session.graph().to_text()))
    }

    /// Checks that the outputs equal those of the same graph with barriers. Then fetches all
    /// outputs, the last output, and the outputs with some intermediate results, and checks that
    /// every value equals the one of a run that fetches everything.
    fn check(
        &self,
        unfused: &RandomGraph,
        compare: impl Fn(&HostTensor, &HostTensor) -> Result<(), String>,
    ) -> Result<(), String> {
        let (found, expected) = (self.run(&self.outputs)?, unfused.run(&unfused.outputs)?);
        for ((found, expected), fetch) in found.iter().zip(&expected).zip(&self.outputs) {
            let graph = || self.session.graph().to_text();
            compare(expected, found).map_err(|e| format!("{} fused: {e}\n{}", fetch.name(), graph()))?;
        }
        let all = self.run(&self.all)?;
        let some = self.all.iter().step_by(4).chain(&self.outputs).cloned().collect();
        let last = self.outputs.last().cloned().into_iter().collect();
        for group in [self.outputs.clone(), last, some] {
            for (fetch, found) in group.iter().zip(self.run(&group)?) {
                let at = self.all.iter().position(|f| f.name() == fetch.name());
                let expected = &all[at.ok_or(format!("{} is not a node", fetch.name()))?];
                compare(expected, &found).map_err(|e| {
                    let names: Vec<&str> = group.iter().map(Fetch::name).collect();
                    let graph = self.session.graph().to_text();
                    format!("{} of the fetches {names:?}: {e}\n{graph}", fetch.name())
                })?;
            }
        }
        Ok(())
    }
}

#[test]
fn fused_integers_are_the_same() {
    for_random_graphs("integers", 150, |choices| {
        let unfused = draw(choices, DType::I64, Isa::detect(), true)?;
        draw(choices, DType::I64, Isa::detect(), false)?.check(&unfused, |expected, found| {
            match expected == found {
                true => Ok(()),
                false => Err(format!("{found:?} instead of {expected:?}")),
            }
        })
    });
}

/// Checks that floats are equal up to `tolerance`, relative to the largest element.
fn check_close(expected: &HostTensor, found: &HostTensor, tolerance: f64) -> Result<(), String> {
    if expected.sizes() != found.sizes() {
        return Err(format!("sizes {:?} instead of {:?}", found.sizes(), expected.sizes()));
    }
    let (expected, found) = (expected.to_f64_vec(), found.to_f64_vec());
    let scale = expected.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
    let close = |a: f64, b: f64| (a - b).abs() <= tolerance * scale || a == b || (a.is_nan() && b.is_nan());
    match expected.iter().zip(&found).position(|(&a, &b)| !close(a, b)) {
        Some(k) => Err(format!("element {k} is {} instead of {}", found[k], expected[k])),
        None => Ok(()),
    }
}

#[test]
fn fused_floats_are_the_same_within_rounding() {
    for_random_graphs("floats", 100, |choices| {
        for isa in [Isa::Plain, Isa::detect()] {
            let unfused = draw(choices, DType::F32, isa, true)?;
            draw(choices, DType::F32, isa, false)?
                .check(&unfused, |expected, found| check_close(expected, found, 1e-5))?;
        }
        Ok(())
    });
}

#[test]
fn fused_floats_of_16_bits_are_the_same_within_rounding() {
    for (dtype, tolerance) in [(DType::Bf16, 2e-2), (DType::F16, 2.5e-3)] {
        for_random_graphs(&dtype.to_string(), 60, |choices| {
            let unfused = draw(choices, dtype, Isa::detect(), true)?;
            draw(choices, dtype, Isa::detect(), false)?
                .check(&unfused, |expected, found| check_close(expected, found, tolerance))
        });
    }
}
