//! Adagrad (Duchi, Hazan and Singer, 2011).

use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// PyTorch's `Adagrad`:
///
/// ```text
/// s += g^2
/// w -= rate g / (sqrt(s) + epsilon)
/// ```
#[derive(Clone, Debug)]
pub struct Adagrad {
    rate: Rate,
    epsilon: f64,
    first: f64,
}

impl Adagrad {
    /// With this learning rate, epsilon 1e-10, and sums that begin at 0.
    #[doc(alias = "AdagradOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Adagrad {
        Adagrad { rate: rate.into(), epsilon: 1e-10, first: 0.0 }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Adagrad {
        Adagrad { epsilon, ..self }
    }

    /// With sums that begin at `first`.
    #[must_use]
    #[doc(alias = "initial_accumulator_value")]
    pub fn first_sum(self, first: f64) -> Adagrad {
        Adagrad { first, ..self }
    }
}

impl Optimizer for Adagrad {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Adagrad", "the first sum", self.first, Allowed::NotNegative);
        let mut updates = Vec::new();
        for gradient in gradients {
            let g = gradient.decayed();
            let s = gradient.slot_from("adagrad", self.first);
            let next = s.value() + g.square();
            updates.push(s.assign(&next));
            let direction = g / (next.sqrt() + self.epsilon);
            updates.push(gradient.variable.update(|w| w - direction * self.rate.of(graph, gradient)));
        }
        updates
    }
}
