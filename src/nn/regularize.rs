//! L1 and L2 regularization of variables selected by name.

use crate::graph::{Graph, NamePattern, REGULARIZATION_LOSSES, TRAINABLE_VARIABLES, Tensor, Variable};
use crate::tower::TowerContext;
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{DType, HostTensor};

/// The penalty of a layer's weights.
#[derive(Clone)]
pub(super) struct Regularizer(Arc<dyn Fn(&Tensor) -> Tensor + Send + Sync>);

impl fmt::Debug for Regularizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Regularizer")
    }
}

impl Regularizer {
    pub(super) fn new(penalty: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static) -> Regularizer {
        Regularizer(Arc::new(penalty))
    }

    /// Adds the penalty of a variable to the regularization losses of a training tower: once, however
    /// often the variable is shared there. It is that of the variable itself, not of a remapped value.
    #[track_caller]
    pub(super) fn add_loss(&self, t: &TowerContext, variable: &Variable) {
        let graph = t.graph();
        let Some(id) = variable.id else { return };
        let once = || graph.first_time(&format!("regularizer of {} in tower {}", variable.name(), t.index()));
        if t.is_training() && !t.freezes_variables() && once() {
            graph.add_to_collection(REGULARIZATION_LOSSES, &(self.0)(graph.variable_handle(id).value()));
        }
    }
}

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
    let zero = || zero(graph, dtype);
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

/// Returns the sum of the regularization losses of this tower, to be added to the cost: those of the
/// layers with a `regularizer` (see [`Conv2d::regularizer`](super::Conv2d::regularizer)) that were
/// applied before the call. In inference, and if there are none, the result is zero.
///
/// ```
/// # use tensorpack::prelude::*;
/// # let graph = Graph::new();
/// # let t = &TowerContext::training(&graph);
/// # let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
/// let loss = t.argscope(|fc: Linear| fc.regularizer(l2_regularizer(1e-5)), |t| {
///     Linear::new(2).apply(t, "fc0", &x).mean()
/// });
/// let cost = loss + regularize_cost_from_collection(t);
/// # assert!(graph.freeze().is_ok());
/// ```
#[track_caller]
pub fn regularize_cost_from_collection(t: &TowerContext) -> Tensor {
    let graph = t.graph();
    let losses = graph.collection(REGULARIZATION_LOSSES).tensors.into_iter();
    let tower = graph.current_tower();
    let own = losses.filter(|id| graph.node(id.node).is_some_and(|node| node.tower == tower));
    let own: Vec<Tensor> = own.map(|id| graph.tensor_at(id)).filter(|_| t.is_training()).collect();
    let dtype = own.first().map_or(DType::F32, Tensor::dtype);
    let sum = own.iter().map(|loss| loss.cast(dtype)).reduce(|a, b| a + b);
    sum.unwrap_or_else(|| zero(graph, dtype))
}

#[track_caller]
fn zero(graph: &Graph, dtype: DType) -> Tensor {
    graph.constant(HostTensor::from_f64(dtype, [], &[0.0]).expect("one float"))
}

/// Returns the trainable variables created so far.
fn trainable_variables(graph: &Graph) -> Vec<Variable> {
    graph.collection(TRAINABLE_VARIABLES).variables.iter().map(|&id| graph.variable_handle(id)).collect()
}
