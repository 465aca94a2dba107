//! Moving averages of weights.

use super::gradient::state;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{EMA_VARIABLES, Graph, Init, Op, Sharing, Tensor, Variable, VariableSpec};
use tensorpack_tensor::DType;

/// An optimizer that keeps the exponential moving average of every variable it trains, as it is after each update, in
/// `EMA/NAME`:
///
/// ```text
/// average = decay average + (1 - decay) w
/// ```
///
/// It begins at the weights before the first update, as TensorFlow's `ExponentialMovingAverage` does, or, with
/// [`debiased`](Ema::debiased), as if it had begun at zero and were divided by `1 - decay^t`. Before the first update
/// there is no average, and `EMA/NAME` is zero. A tower that is to use the averages in place of the weights is made with
/// `TowerContext::inference(&graph).averaged()`.
#[derive(Debug)]
pub struct Ema {
    inner: Box<dyn Optimizer>,
    decay: f64,
    debiased: bool,
}

impl Ema {
    /// `inner`, followed by averages that keep `decay` of what they were at each step.
    #[doc(alias = "ExponentialMovingAverage")]
    pub fn new(inner: impl Optimizer + 'static, decay: f64) -> Ema {
        Ema { inner: inner.boxed(), decay, debiased: false }
    }

    /// Without a trace of the weights that training began with.
    #[must_use]
    pub fn debiased(self) -> Ema {
        Ema { debiased: true, ..self }
    }

    /// The moving average of `variable`, if there is one.
    #[track_caller]
    pub fn of(variable: &Variable) -> Option<Variable> {
        variable.graph().variable_named(&format!("{PREFIX}{}", variable.name()))
    }

    /// All variables that have a moving average, each with its average.
    #[track_caller]
    pub fn pairs(graph: &Graph) -> Vec<(Variable, Variable)> {
        let averages = graph.collection(EMA_VARIABLES).variables;
        let pair = |&id| {
            let average = graph.variable_handle(id);
            let name = average.name().strip_prefix(PREFIX)?;
            Some((graph.variable_named(name)?, average))
        };
        averages.iter().filter_map(pair).collect()
    }
}

const PREFIX: &str = "EMA/";

impl Optimizer for Ema {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Ema", "the decay", self.decay, Allowed::Share);
        let mut updates = self.inner.apply(graph, gradients);
        // decay^t, in f64: 1 in the first step.
        let spec = VariableSpec::new("ema_decay_power", []).dtype(DType::F64).init(Init::ones());
        let power = state(graph, spec.non_trainable());
        updates.push(power.update(|p| p * self.decay));
        let first = power.value().equal(&power.one());
        for Gradient { variable, .. } in gradients {
            let average = average_of(graph, variable);
            let (w, dtype) = (variable.current(), variable.dtype());
            let next = |average: &Tensor| {
                if self.debiased {
                    let share = (1.0 - self.decay) / (1.0 - power.value() * self.decay);
                    average + (w - average) * share.cast(dtype)
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

/// The variable that holds another's average.
#[track_caller]
fn average_of(graph: &Graph, variable: &Variable) -> Variable {
    let sizes = variable.shape().known().unwrap_or_default();
    let spec = VariableSpec::new(format!("{PREFIX}{}", variable.name()), sizes).dtype(variable.dtype());
    let spec = spec.init(Init::zeros()).non_trainable().slab("ema").also_in(EMA_VARIABLES);
    graph.at_root(|| graph.variable(spec, Sharing::Make))
}
