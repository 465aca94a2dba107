//! L1 and L2 regularization of variables selected by name.

use crate::graph::{Graph, NamePattern, TRAINABLE_VARIABLES, Tensor, Variable};
use crate::tower::TowerContext;
use tensorpack_tensor::{DType, HostTensor};

/// Returns the regularizer `scale * sum(w^2) / 2`.
pub fn l2_regularizer(scale: f64) -> impl Fn(&Tensor) -> Tensor {
    move |w| w.square().sum() * (0.5 * scale)
}

/// Returns the regularizer `scale * sum(|w|)`.
pub fn l1_regularizer(scale: f64) -> impl Fn(&Tensor) -> Tensor {
    move |w| w.abs().sum() * scale
}

/// Returns the sum of `regularizer` over the trainable variables whose whole name matches the
/// regular expression `pattern` (see [`NamePattern`]), to be added to the cost.
///
/// Only variables created before the call count; their names are logged once. In inference the
/// result is zero.
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
    let pattern = NamePattern::new(pattern);
    let variables = trainable_variables(graph);
    let dtype = variables.first().map_or(DType::F32, |v| v.dtype());
    let zero = || graph.constant(HostTensor::from_f64(dtype, [], &[0.0]).expect("one float"));
    if !t.is_training() {
        return zero();
    }
    if let Err(e) = pattern.check_among("trainable variable", variables.iter().map(Variable::name)) {
        graph.record("regularize_cost", &[], e);
        return Tensor::poison(graph);
    }
    let chosen: Vec<&Variable> = variables.iter().filter(|v| pattern.matches(v.name())).collect();
    if graph.first_time(&format!("regularize_cost {pattern}")) {
        let names: Vec<&str> = chosen.iter().map(|v| v.name()).collect();
        log::info!("regularize_cost: {pattern} matches {}", names.join(", "));
    }
    let costs = chosen.into_iter().map(|v| regularizer(v.value()).cast(dtype));
    costs.reduce(|a, b| a + b).unwrap_or_else(zero)
}

/// Returns the trainable variables created so far.
fn trainable_variables(graph: &Graph) -> Vec<Variable> {
    graph.collection(TRAINABLE_VARIABLES).variables.iter().map(|&id| graph.variable_handle(id)).collect()
}
