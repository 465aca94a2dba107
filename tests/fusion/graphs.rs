//! Random graphs give the same whether their ends alone are fetched, so that all between may be
//! fused, or more of them, or with a barrier after every operation, so that nothing is fused. Half
//! of the graphs of floats hold gradients too.

use super::growing::{Choices, Growing, over_graphs};
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Init, Tensor, TensorSpec, VariableSpec};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// A random graph in a session, and what is fed to it.
struct Drawn {
    session: Session,
    feeds: Vec<(String, HostTensor)>,
    /// Every result of every operation.
    all: Vec<Fetch>,
    /// What nothing in the graph reads.
    ends: Vec<Fetch>,
}

fn draw(choices: &[u32], dtype: DType, isa: Isa, apart: bool) -> Result<Drawn, String> {
    let c = &mut Choices(choices.iter());
    let rng = CounterRng::new(u64::from(choices[0]), "fusion");
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let (mut feeds, mut inputs) = (Vec::new(), Vec::new());
    let base: Vec<usize> = (0..3).map(|_| c.of(&[3, 4, 1, 5, 2, 4, 3, 17, 6, 4, 1, 33, 5, 0])).collect();
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
    let mut growing = Growing::new(&graph, dtype, inputs.clone(), apart);
    let steps = 6 + c.below(14);
    (0..steps).for_each(|_| growing.grow(c));
    let mut ends = growing.ends();
    if dtype.is_float() && c.below(2) == 1 {
        let cost = ends.iter().map(|t| (t * growing.constant(0.5)).tanh().sum()).reduce(|a, b| a + b);
        let xs: Vec<&Tensor> = inputs.iter().collect();
        let found = cost.map_or(Ok(Vec::new()), |cost| gradients(&cost, &xs)).map_err(|e| e.to_string())?;
        ends.extend(found.into_iter().flatten());
    }
    let ends: Vec<Fetch> = ends.iter().map(IntoFetch::fetch).collect();
    let frozen = graph.freeze().map_err(|e| e.to_string())?;
    let named = |n: &tensorpack::graph::Node| frozen.fetch(&n.name).map_err(|e| e.to_string());
    let all = frozen.nodes().iter().map(named).collect::<Result<Vec<Fetch>, String>>()?;
    let options =
        SessionOptions { isa: Some(isa), threads: Some(1 + c.below(2)), ..SessionOptions::default() };
    let session = Session::with(frozen, options).map_err(|e| e.to_string())?;
    Ok(Drawn { session, feeds, all, ends })
}

impl Drawn {
    fn run(&self, fetches: &[Fetch]) -> Result<Vec<HostTensor>, String> {
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let what: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
        self.session.run(&what, &feeds).map_err(|e| format!("{e}\n{}", self.session.graph().to_text()))
    }

    /// Checks that the ends are as in the same graph with barriers; and that they, the last of them
    /// alone, and they with some of what lies between are as when all is fetched.
    fn check(
        &self,
        apart: &Drawn,
        same: impl Fn(&HostTensor, &HostTensor) -> Result<(), String>,
    ) -> Result<(), String> {
        let (found, right) = (self.run(&self.ends)?, apart.run(&apart.ends)?);
        for ((found, right), fetch) in found.iter().zip(&right).zip(&self.ends) {
            let graph = || self.session.graph().to_text();
            same(right, found).map_err(|e| format!("{} without barriers: {e}\n{}", fetch.name(), graph()))?;
        }
        let all = self.run(&self.all)?;
        let some = self.all.iter().step_by(4).chain(&self.ends).cloned().collect();
        let last = self.ends.last().cloned().into_iter().collect();
        for group in [self.ends.clone(), last, some] {
            for (fetch, found) in group.iter().zip(self.run(&group)?) {
                let at = self.all.iter().position(|f| f.name() == fetch.name());
                let right = &all[at.ok_or(format!("{} is no node", fetch.name()))?];
                same(right, &found).map_err(|e| {
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
    over_graphs("integers", 150, |choices| {
        let apart = draw(choices, DType::I64, Isa::detect(), true)?;
        draw(choices, DType::I64, Isa::detect(), false)?.check(&apart, |right, found| match right == found {
            true => Ok(()),
            false => Err(format!("{found:?} instead of {right:?}")),
        })
    });
}

/// Checks that floats are alike, but for rounding in the last digits of the largest.
fn alike(right: &HostTensor, found: &HostTensor, tolerance: f64) -> Result<(), String> {
    if right.sizes() != found.sizes() {
        return Err(format!("sizes {:?} instead of {:?}", found.sizes(), right.sizes()));
    }
    let (right, found) = (right.to_f64_vec(), found.to_f64_vec());
    let scale = right.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
    let alike = |a: f64, b: f64| (a - b).abs() <= tolerance * scale || a == b || (a.is_nan() && b.is_nan());
    match right.iter().zip(&found).position(|(&a, &b)| !alike(a, b)) {
        Some(k) => Err(format!("element {k} is {} instead of {}", found[k], right[k])),
        None => Ok(()),
    }
}

#[test]
fn fused_floats_are_the_same_within_rounding() {
    over_graphs("floats", 100, |choices| {
        for isa in [Isa::Plain, Isa::detect()] {
            let apart = draw(choices, DType::F32, isa, true)?;
            draw(choices, DType::F32, isa, false)?.check(&apart, |right, found| alike(right, found, 1e-5))?;
        }
        Ok(())
    });
}

#[test]
fn fused_bf16_are_the_same_within_rounding() {
    over_graphs("bf16", 60, |choices| {
        let apart = draw(choices, DType::Bf16, Isa::detect(), true)?;
        draw(choices, DType::Bf16, Isa::detect(), false)?
            .check(&apart, |right, found| alike(right, found, 2e-2))
    });
}
