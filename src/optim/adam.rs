//! Adam (Kingma and Ba, 2014).

use super::moments::Moments;
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// Adam, as in PyTorch:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    rate: Rate,
    moments: Moments,
}

impl Adam {
    /// Creates an optimizer with this learning rate, betas 0.9 and 0.999, and epsilon 1e-8.
    #[doc(alias = "AdamOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Adam {
        Adam { rate: rate.into(), moments: Moments::new(1e-8) }
    }

    /// Sets the betas (default: 0.9 and 0.999).
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Adam {
        (self.moments.beta1, self.moments.beta2) = (beta1, beta2);
        self
    }

    /// Sets epsilon (default: 1e-8).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Adam {
        self.moments.epsilon = epsilon;
        self
    }
}

impl Optimizer for Adam {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        let (estimates, mut updates) = self.moments.update(graph, "Adam", gradients, Gradient::decayed);
        for (g, e) in gradients.iter().zip(estimates) {
            let rate = self.rate.for_gradient(graph, g) / e.bias_correction;
            updates.push(g.variable.update(|w| w - rate * e.mean / e.denominator));
        }
        updates
    }
}
