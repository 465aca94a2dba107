//! LAMB, for large batches (You et al., 2019).

use super::moments::Moments;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op, Tensor};

/// Algorithm 2 of the paper, with the identity as its function of the norm:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w
/// w -= rate |w| / |u| u
/// ```
///
/// The norms are those of each variable. Where either is 0, their ratio is taken as 1.
#[derive(Clone, Debug)]
pub struct Lamb {
    rate: Rate,
    moments: Moments,
    decay: f64,
}

impl Lamb {
    /// With this learning rate, betas 0.9 and 0.999, epsilon 1e-6, decay 0.01.
    pub fn new(rate: impl Into<Rate>) -> Lamb {
        Lamb { rate: rate.into(), moments: Moments::new(1e-6), decay: 0.01 }
    }

    /// With these betas.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lamb {
        (self.moments.beta1, self.moments.beta2) = (beta1, beta2);
        self
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Lamb {
        self.moments.epsilon = epsilon;
        self
    }

    /// With this weight decay, except where a [group](super::ParamGroups) has its own.
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> Lamb {
        Lamb { decay, ..self }
    }
}

impl Optimizer for Lamb {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Lamb", "the decay", self.decay, Allowed::NotNegative);
        let (averages, mut updates) = self.moments.follow(graph, "Lamb", gradients, |g| g.value.clone());
        for (g, a) in gradients.iter().zip(averages) {
            let w = g.variable.value();
            let direction = a.mean / (a.left * a.root) + w * g.decay.unwrap_or(self.decay);
            let rate = self.rate.of(graph, g) * trust(w, &direction);
            updates.push(g.variable.update(|w| w - rate * direction));
        }
        updates
    }
}

/// The size of the weights over that of their step, or 1 if either is 0.
#[track_caller]
fn trust(w: &Tensor, step: &Tensor) -> Tensor {
    let norm = |t: &Tensor| t.square().sum().sqrt();
    let (w, step) = (norm(w), norm(step));
    let moves = step.greater(&step.zero());
    let ratio = &w / moves.select(&step, &step.one());
    w.greater(&w.zero()).logical_and(&moves).select(&ratio, &ratio.one())
}
