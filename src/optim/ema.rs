//! Exponential moving averages of weights.

use super::gradient::state;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{EMA_VARIABLES, Graph, Init, Op, Sharing, Tensor, Variable, VariableSpec};
use tensorpack_tensor::{DType, Error};

/// An optimizer wrapper that keeps the exponential moving average of every trained variable in
/// `EMA/NAME`, updated after each step:
///
/// ```text
/// average = decay average + (1 - decay) w
/// ```
///
/// The average starts at the weights before the first update, like TensorFlow's
/// `ExponentialMovingAverage`. With [`debiased`](Ema::debiased) it equals an average that starts at
/// zero, divided by `1 - decay^t`. Before the first update `EMA/NAME` is zero. To build a tower
/// that uses the averages in place of the weights, use
/// `TowerContext::inference(&graph).averaged()`.
#[derive(Debug)]
pub struct Ema {
    inner: Box<dyn Optimizer>,
    decay: f64,
    debiased: bool,
}

impl Ema {
    /// Creates an optimizer that applies `inner` and then updates the averages with this decay.
    #[doc(alias = "ExponentialMovingAverage")]
    pub fn new(inner: impl Optimizer + 'static, decay: f64) -> Ema {
        Ema { inner: inner.boxed(), decay, debiased: false }
    }

    /// Corrects the bias of a zero start, so that the average does not contain the initial weights.
    #[must_use]
    pub fn debiased(self) -> Ema {
        Ema { debiased: true, ..self }
    }

    /// Returns the moving average of `variable`, if it has one.
    #[track_caller]
    #[doc(alias = "of")]
    pub fn average_of(variable: &Variable) -> Option<Variable> {
        variable.graph().variable_named(&format!("{EMA_PREFIX}{}", variable.name()))
    }

    /// Returns all variables that have a moving average, each with its average.
    #[track_caller]
    pub fn pairs(graph: &Graph) -> Vec<(Variable, Variable)> {
        let averages = graph.collection(EMA_VARIABLES).variables;
        let pair = |&id| {
            let average = graph.variable_handle(id);
            let name = average.name().strip_prefix(EMA_PREFIX)?;
            Some((graph.variable_named(name)?, average))
        };
        averages.iter().filter_map(pair).collect()
    }
}

/// The prefix of the name of an average.
pub(crate) const EMA_PREFIX: &str = "EMA/";

impl Optimizer for Ema {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Ema", "the decay", self.decay, Allowed::Fraction);
        let mut updates = self.inner.apply(graph, gradients);
        // decay^t, in f64; 1 in the first step.
        let spec = VariableSpec::new("ema_decay_power", []).dtype(DType::F64).init(Init::ones());
        let power = state(graph, spec.non_trainable());
        updates.push(power.update(|p| p * self.decay));
        let first = power.value().equal(1.0);
        for Gradient { variable, .. } in gradients {
            let average = create_average(graph, "Ema", variable);
            let (w, dtype) = (variable.current(), variable.dtype());
            let next = |average: &Tensor| {
                if self.debiased {
                    let weight = (1.0 - self.decay) / (1.0 - power.value() * self.decay);
                    average + (w - average) * weight.cast(dtype)
                } else {
                    let before = first.select(variable.value(), average);
                    before * self.decay + w * (1.0 - self.decay)
                }
            };
            updates.push(average.update(next));
        }
        updates
    }
}

/// Creates the variable in which the optimizer `op` keeps the average of `variable`. A variable has one
/// average: a second one is an error.
#[track_caller]
pub(super) fn create_average(graph: &Graph, op: &str, variable: &Variable) -> Variable {
    if let Some(average) = Ema::average_of(variable) {
        let why = format!("the variable {} has a moving average already", variable.name());
        graph.record(op, &[], Error::argument(why).note("use only one of `Ema` and `Swa`, and only once"));
        return average;
    }
    let sizes = variable.shape().known().unwrap_or_default();
    let spec = VariableSpec::new(format!("{EMA_PREFIX}{}", variable.name()), sizes).dtype(variable.dtype());
    let spec = spec.init(Init::zeros()).non_trainable().slab("ema").also_in(EMA_VARIABLES);
    graph.at_root(|| graph.variable(spec, Sharing::Make))
}
