//! Costs of large weights, for variables chosen by name.

use crate::graph::{Graph, TRAINABLE_VARIABLES, Tensor, Variable};
use crate::tower::TowerContext;
use regex_lite::Regex;
use tensorpack_tensor::{DType, Error, HostTensor};

/// `scale * sum(w^2) / 2` of a variable.
pub fn l2_regularizer(scale: f64) -> impl Fn(&Tensor) -> Tensor {
    move |w| w.square().sum() * (0.5 * scale)
}

/// `scale * sum(|w|)` of a variable.
pub fn l1_regularizer(scale: f64) -> impl Fn(&Tensor) -> Tensor {
    move |w| w.abs().sum() * scale
}

/// The sum of `regularizer` over all trainable variables so far in whose name `pattern` is found, to be added to the
/// cost. Which ones these are is logged once. Outside of training it is zero.
///
/// ```
/// # use tensorpack::prelude::*;
/// # let graph = Graph::new();
/// # let t = &TowerContext::training(&graph);
/// # let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
/// # let loss = Linear::new(2).apply(t, "fc0", &x).mean();
/// let cost = loss + regularize_cost(t, "fc.*/W", l2_regularizer(1e-5));
/// # assert!(graph.freeze().is_ok());
/// ```
#[track_caller]
pub fn regularize_cost(t: &TowerContext, pattern: &str, regularizer: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let graph = t.graph();
    let pattern = match Regex::new(pattern) {
        Ok(found) => found,
        Err(e) => {
            let e = Error::argument(format!("the pattern {pattern:?} is not a regular expression: {e}"));
            graph.record("regularize_cost", &[], e);
            return Tensor::poison(graph);
        }
    };
    let variables = trainables(graph);
    let dtype = variables.first().map_or(DType::F32, |v| v.dtype());
    let zero = || graph.constant(HostTensor::from_f64(dtype, [], &[0.0]).expect("one float"));
    if !t.is_training() {
        return zero();
    }
    let chosen: Vec<&Variable> = variables.iter().filter(|v| pattern.is_match(v.name())).collect();
    if graph.first_time(&format!("regularize_cost {pattern}")) {
        let names: Vec<&str> = chosen.iter().map(|v| v.name()).collect();
        match names.is_empty() {
            true => log::warn!("regularize_cost: no trainable variable has {pattern} in its name"),
            false => log::info!("regularize_cost with {pattern}: {}", names.join(", ")),
        }
    }
    let costs = chosen.into_iter().map(|v| regularizer(v.value()).cast(dtype));
    costs.reduce(|a, b| a + b).unwrap_or_else(zero)
}

/// The trainable variables there are.
fn trainables(graph: &Graph) -> Vec<Variable> {
    graph.collection(TRAINABLE_VARIABLES).variables.iter().map(|&id| graph.variable_handle(id)).collect()
}
