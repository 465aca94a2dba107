//! Reports norms of gradients, updates and weights.

use super::{Callback, FetchHandle, GraphCx, RunCx, Statistic, When};
use crate::graph::{GRADIENTS, NodeId, NodeKind, Tensor, VariableId};
use crate::runtime::Cadence;
use std::collections::BTreeMap;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// Reports four statistics of a step, at the end of every epoch and every 100 steps:
///
/// - `gradient_norm`: the norm of all gradients as one vector, averaged over towers, before
///   gradient processors;
/// - `update_norm`: the norm of the change of all trainable variables;
/// - `weight_norm`: the norm of these variables before the step;
/// - `update_ratio`: the update norm divided by the weight norm. Values around 0.001 are usual.
///
/// Other steps cost nothing. On an accelerator, the host waits for the steps that are reported.
#[derive(Clone, Debug)]
#[doc(alias = "grad_norm")]
pub struct GradientStatistics {
    every: u64,
    /// The squares of the norms of gradients, updates and weights, each at the end of epochs and
    /// every few steps.
    fetched: Vec<[FetchHandle; 2]>,
}

const NAMES: [&str; 4] = ["gradient_norm", "update_norm", "weight_norm", "update_ratio"];

impl Default for GradientStatistics {
    fn default() -> GradientStatistics {
        GradientStatistics { every: 100, fetched: Vec::new() }
    }
}

impl GradientStatistics {
    /// Reports at the end of every epoch and every 100 steps.
    pub fn new() -> GradientStatistics {
        GradientStatistics::default()
    }

    /// Reports every `steps` steps instead of every 100, and at the end of every epoch.
    #[must_use]
    pub fn every(self, steps: u64) -> GradientStatistics {
        GradientStatistics { every: steps, ..self }
    }
}

impl Callback for GradientStatistics {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.every == 0 {
            return Err(Error::argument("GradientStatistics::every: every 0 steps is never"));
        }
        let graph = g.graph().clone();
        let gradients: Vec<Tensor> =
            graph.collection(GRADIENTS).tensors.into_iter().map(|id| graph.tensor_at(id)).collect();
        // The last assignment of a run has the value that the variable gets.
        let nodes = (0..).map_while(|i| graph.node(NodeId(i)));
        let mut next: BTreeMap<VariableId, Tensor> = BTreeMap::new();
        for node in nodes {
            if let NodeKind::Assign { variable, .. } = node.kind
                && graph.variable_info(variable).is_some_and(|v| v.trainable)
                && let [value, ..] = node.inputs[..]
            {
                next.insert(variable, graph.tensor_at(value));
            }
        }
        let values = || next.keys().map(|&id| graph.variable_handle(id).value().clone());
        let updates: Vec<Tensor> = values().zip(next.values()).map(|(now, next)| next - &now).collect();
        let sums = [gradients, updates, values().collect()].map(|tensors| sum_of_squares(&tensors));
        let [Some(gradients), Some(updates), Some(weights)] = sums else {
            let why = "GradientStatistics needs a step that updates trainable variables with gradients";
            return Err(
                Error::new(ErrorKind::Graph, why).note("build it with minimize(..) or apply_gradients(..)")
            );
        };
        for sum in [gradients, updates, weights] {
            let handles =
                [Cadence::EveryEpoch, Cadence::EverySteps(self.every)].map(|cadence| g.fetch(&sum, cadence));
            self.fetched.push(handles);
        }
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let norm = |handles: &[FetchHandle; 2]| handles.iter().find_map(|h| cx.scalar(*h)).map(f64::sqrt);
        let norms: Option<Vec<f64>> = self.fetched.iter().map(norm).collect();
        if let Some([gradient, update, weight]) = norms.as_deref() {
            let values = [*gradient, *update, *weight, update / weight];
            NAMES.iter().zip(values).for_each(|(name, value)| cx.put_scalar(name, value));
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        NAMES.iter().map(|name| Statistic::new(*name, When::Run)).collect()
    }
}

/// Returns the sum of the squares of all elements; `None` without tensors.
fn sum_of_squares(tensors: &[Tensor]) -> Option<Tensor> {
    let square = |x: &Tensor| {
        let x = if x.dtype().size() < 4 { x.cast(DType::F32) } else { x.clone() };
        x.square().sum().cast(DType::F64)
    };
    tensors.iter().map(square).reduce(|a, b| a + b)
}
