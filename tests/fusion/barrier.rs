//! An operation that prevents fusion, and comparisons of graphs with and without it.

use super::graph_builder::Choices;
use std::sync::Arc;
use tensorpack::graph::{Fetch, GradCx, Graph, OpDef, Spec, Tensor, TensorSpec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::{DType, HostTensor, Result};

/// The identity as a separate kernel. A fetched result may still be recomputed inside the kernel
/// that reads it; a barrier prevents that, for its input and its gradient. Its output is dense.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Barrier;

pub(crate) fn barrier(x: &Tensor) -> Tensor {
    Tensor::apply_one(Barrier, &[x])
}

impl OpDef for Barrier {
    fn name(&self) -> &str {
        "Barrier"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(barrier(cx.dy()))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(Identity)))
    }
}

#[derive(Debug)]
struct Identity;

impl CustomKernel for Identity {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs.clone_from_slice(inputs);
        Ok(())
    }
}

/// A graph that is built twice: without barriers, and with one at every call of `stored`.
pub(crate) struct Building {
    pub(crate) graph: Graph,
    unfused: bool,
    rng: CounterRng,
    feeds: Vec<(String, HostTensor)>,
}

impl Building {
    /// Returns `x`, followed by a barrier if the graph has barriers.
    pub(crate) fn stored(&self, x: Tensor) -> Tensor {
        if self.unfused { barrier(&x) } else { x }
    }

    /// Adds a feed with values in `[-1, 1)` that f32 represents exactly.
    pub(crate) fn feed(&mut self, sizes: &[usize], dtype: DType) -> Tensor {
        let k = self.feeds.len();
        let known: Vec<Option<usize>> = sizes.iter().map(|&n| Some(n)).collect();
        let spec = TensorSpec::new(format!("x{k}"), dtype, known);
        let number = |i: usize| (self.rng.uniform(k as u64, i as u64) * 64.0).floor() / 32.0 - 1.0;
        let values: Vec<f64> = (0..sizes.iter().product()).map(number).collect();
        let value = HostTensor::from_f64(dtype, sizes.to_vec(), &values).expect("a value for each element");
        self.feeds.push((spec.name.clone(), value));
        self.graph.placeholder(&spec)
    }
}

/// Checks that the tensors `build` returns have the same values with and without barriers.
pub(crate) fn same_without_fusion(
    choices: &[u32],
    build: impl Fn(&mut Building, &mut Choices<'_>) -> Vec<Tensor>,
) -> std::result::Result<(), String> {
    let failed = |e: tensorpack::Error| e.to_string();
    let run = |unfused: bool| -> std::result::Result<(Vec<HostTensor>, String), String> {
        let c = &mut Choices(choices.iter());
        let (isa, threads) = (c.pick(&[Isa::detect(), Isa::Plain]), 1 + c.below(2));
        let rng = CounterRng::new(u64::from(choices[0]), "feeds");
        let mut building = Building { graph: Graph::new(), unfused, rng, feeds: Vec::new() };
        let outputs: Vec<Fetch> = build(&mut building, c).iter().map(IntoFetch::fetch).collect();
        let options = SessionOptions { isa: Some(isa), threads: Some(threads), ..SessionOptions::default() };
        let session = Session::with(building.graph.freeze().map_err(failed)?, options).map_err(failed)?;
        let outputs: Vec<&dyn IntoFetch> = outputs.iter().map(|f| f as &dyn IntoFetch).collect();
        let feeds: Vec<(&str, &HostTensor)> = building.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let plan = session.plan_text(&outputs, &feeds).map_err(failed)?;
        let found = session.run(&outputs, &feeds).map_err(failed)?;
        Ok((found, format!("{plan}{}", session.graph().to_text())))
    };
    let ((found, text), (right, _)) = (run(false)?, run(true)?);
    for (k, (found, right)) in found.iter().zip(&right).enumerate() {
        let tolerance = match right.dtype() {
            DType::Bf16 => 1e-2,
            DType::F16 => 1.25e-3,
            d if d.is_float() => 1e-5,
            _ => 0.0,
        };
        let (a, b) = (found.to_f64_vec(), right.to_f64_vec());
        let scale = b.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
        let far =
            |(a, b): (&f64, &f64)| a != b && (a - b).abs() > tolerance * scale && !(a.is_nan() && b.is_nan());
        if found.sizes() != right.sizes() || found.dtype() != right.dtype() || a.iter().zip(&b).any(far) {
            return Err(format!("result {k} is {found:?}, not {right:?}\n{text}"));
        }
    }
    Ok(())
}
