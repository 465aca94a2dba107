//! Gradient descent with momentum.

use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// Gradient descent with momentum: PyTorch's `SGD` with momentum and no dampening, TensorFlow's
/// `MomentumOptimizer`.
///
/// ```text
/// v = momentum v + g
/// w -= rate v                       or, with nesterov,
/// w -= rate (g + momentum v)
/// ```
#[derive(Clone, Debug)]
pub struct Momentum {
    rate: Rate,
    momentum: f64,
    nesterov: bool,
}

impl Momentum {
    /// Creates an optimizer with this learning rate and momentum, such as 0.9.
    #[doc(alias = "MomentumOptimizer")]
    pub fn new(rate: impl Into<Rate>, momentum: f64) -> Momentum {
        Momentum { rate: rate.into(), momentum, nesterov: false }
    }

    /// Uses Nesterov momentum (Sutskever et al., 2013).
    #[must_use]
    pub fn nesterov(self) -> Momentum {
        Momentum { nesterov: true, ..self }
    }
}

impl Optimizer for Momentum {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Momentum", "the momentum", self.momentum, Allowed::Fraction);
        let mut updates = Vec::new();
        for gradient in gradients {
            let g = gradient.decayed();
            let v = gradient.slot("momentum");
            let next = v.value() * self.momentum + &g;
            updates.push(v.assign(&next));
            let direction = if self.nesterov { g + next * self.momentum } else { next };
            updates
                .push(gradient.variable.update(|w| w - direction * self.rate.for_gradient(graph, gradient)));
        }
        updates
    }
}
