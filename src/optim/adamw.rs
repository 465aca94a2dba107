//! Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2017).

use super::moments::Moments;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// PyTorch's `AdamW`:
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
    /// With this learning rate, betas 0.9 and 0.999, epsilon 1e-8, decay 0.01.
    pub fn new(rate: impl Into<Rate>) -> AdamW {
        AdamW { rate: rate.into(), moments: Moments::new(1e-8), decay: 0.01 }
    }

    /// With these betas.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> AdamW {
        (self.moments.beta1, self.moments.beta2) = (beta1, beta2);
        self
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> AdamW {
        self.moments.epsilon = epsilon;
        self
    }

    /// With this weight decay, except where a [group](super::ParamGroups) has its own.
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> AdamW {
        AdamW { decay, ..self }
    }
}

impl Optimizer for AdamW {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "AdamW", "the decay", self.decay, Allowed::NotNegative);
        let (averages, mut updates) = self.moments.follow(graph, "AdamW", gradients, |g| g.value.clone());
        for (g, a) in gradients.iter().zip(averages) {
            let rate = self.rate.of(graph, g);
            let kept = 1.0 - &rate * g.decay.unwrap_or(self.decay);
            let rate = rate / a.left;
            updates.push(g.variable.update(|w| w * kept - rate * a.mean / a.root));
        }
        updates
    }
}
