//! Adagrad (Duchi, Hazan and Singer, 2011).

use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// Adagrad, as in PyTorch:
///
/// ```text
/// s += g^2
/// w -= rate g / (sqrt(s) + epsilon)
/// ```
#[derive(Clone, Debug)]
pub struct Adagrad {
    rate: Rate,
    epsilon: f64,
    initial: f64,
}

impl Adagrad {
    /// Creates an optimizer with this learning rate, epsilon 1e-10 and accumulators that start at
    /// 0.
    #[doc(alias = "AdagradOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Adagrad {
        Adagrad { rate: rate.into(), epsilon: 1e-10, initial: 0.0 }
    }

    /// Sets epsilon (default: 1e-10).
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Adagrad {
        Adagrad { epsilon, ..self }
    }

    /// Sets the initial value of the accumulators `s` (default: 0).
    #[must_use]
    #[doc(alias = "first_sum")]
    pub fn initial_accumulator_value(self, initial: f64) -> Adagrad {
        Adagrad { initial, ..self }
    }
}

impl Optimizer for Adagrad {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Adagrad", "initial_accumulator_value", self.initial, Allowed::NonNegative);
        let mut updates = Vec::new();
        for gradient in gradients {
            let g = gradient.decayed();
            let s = gradient.slot_from("adagrad", self.initial);
            let next = s.value() + g.square();
            updates.push(s.assign(&next));
            let direction = g / (next.sqrt() + self.epsilon);
            updates
                .push(gradient.variable.update(|w| w - direction * self.rate.for_gradient(graph, gradient)));
        }
        updates
    }
}
