//! Stochastic gradient descent.

use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// Stochastic gradient descent, `w -= rate * g`: PyTorch's `SGD`, TensorFlow's
/// `GradientDescentOptimizer`. See [`Momentum`](super::Momentum) for SGD with momentum.
#[derive(Clone, Debug)]
pub struct Sgd {
    rate: Rate,
}

impl Sgd {
    /// Creates an optimizer with this learning rate.
    #[doc(alias = "GradientDescentOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Sgd {
        Sgd { rate: rate.into() }
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        let step = |g: &Gradient| g.variable.update(|w| w - g.decayed() * self.rate.for_gradient(graph, g));
        gradients.iter().map(step).collect()
    }
}
