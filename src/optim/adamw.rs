//! Adam with decoupled weight decay (Loshchilov and Hutter, 2017).

use super::moments::Moments;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// AdamW, as in PyTorch:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// w = (1 - rate decay) w - rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
#[derive(Clone, Debug)]
pub struct AdamW {
    rate: Rate,
    moments: Moments,
    decay: f64,
}

impl AdamW {
    /// Creates an optimizer with this learning rate, betas 0.9 and 0.999, epsilon 1e-8 and weight
    /// decay 0.01.
    pub fn new(rate: impl Into<Rate>) -> AdamW {
        AdamW { rate: rate.into(), moments: Moments::new(1e-8), decay: 0.01 }
    }

    /// Sets the betas (default: 0.9 and 0.999).
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> AdamW {
        (self.moments.beta1, self.moments.beta2) = (beta1, beta2);
        self
    }

    /// Sets epsilon (default: 1e-8).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> AdamW {
        self.moments.epsilon = epsilon;
        self
    }

    /// Sets the weight decay (default: 0.01). A [parameter group](super::ParamGroups) may override
    /// it.
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> AdamW {
        AdamW { decay, ..self }
    }
}

impl Optimizer for AdamW {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "AdamW", "the weight decay", self.decay, Allowed::NonNegative);
        let (estimates, mut updates) = self.moments.update(graph, "AdamW", gradients, |g| g.value.clone());
        for (g, e) in gradients.iter().zip(estimates) {
            let rate = self.rate.for_gradient(graph, g);
            let kept = 1.0 - &rate * g.decay.unwrap_or(self.decay);
            let rate = rate / e.bias_correction;
            updates.push(g.variable.update(|w| w * kept - rate * e.mean / e.denominator));
        }
        updates
    }
}
