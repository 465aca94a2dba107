//! LAMB, an optimizer for large batches (You et al., 2019).

use super::moments::Moments;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op, Tensor};

/// LAMB: Algorithm 2 of the paper, with the identity as the scaling function of the norm:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w
/// w -= rate |w| / |u| u
/// ```
///
/// The norms are taken per variable. If either norm is 0, the ratio is 1.
#[derive(Clone, Debug)]
pub struct Lamb {
    rate: Rate,
    moments: Moments,
    decay: f64,
}

impl Lamb {
    /// Creates an optimizer with this learning rate, betas 0.9 and 0.999, epsilon 1e-6 and weight
    /// decay 0.01.
    pub fn new(rate: impl Into<Rate>) -> Lamb {
        Lamb { rate: rate.into(), moments: Moments::new(1e-6), decay: 0.01 }
    }

    /// Sets the betas (default: 0.9 and 0.999).
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lamb {
        (self.moments.beta1, self.moments.beta2) = (beta1, beta2);
        self
    }

    /// Sets epsilon (default: 1e-6).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Lamb {
        self.moments.epsilon = epsilon;
        self
    }

    /// Sets the weight decay (default: 0.01). A [parameter group](super::ParamGroups) may override
    /// it.
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> Lamb {
        Lamb { decay, ..self }
    }
}

impl Optimizer for Lamb {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Lamb", "the weight decay", self.decay, Allowed::NonNegative);
        let (estimates, mut updates) = self.moments.update(graph, "Lamb", gradients, |g| g.value.clone());
        for (g, e) in gradients.iter().zip(estimates) {
            let w = g.variable.value();
            let direction = e.mean / (e.bias_correction * e.denominator) + w * g.decay.unwrap_or(self.decay);
            let rate = self.rate.for_gradient(graph, g) * trust_ratio(w, &direction);
            updates.push(g.variable.update(|w| w - rate * direction));
        }
        updates
    }
}

/// Returns the norm of the weights divided by the norm of their step, or 1 if either is 0.
#[track_caller]
fn trust_ratio(w: &Tensor, step: &Tensor) -> Tensor {
    let norm = |t: &Tensor| t.square().sum().sqrt();
    let (w, step) = (norm(w), norm(step));
    let moves = step.greater(0.0);
    let ratio = &w / moves.select(&step, &step.one());
    w.greater(0.0).logical_and(&moves).select(&ratio, &ratio.one())
}
