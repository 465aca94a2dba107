//! Stochastic gradient descent.

use super::{Optimizer, Rate};
use crate::graph::{Graph, Op, Tensor, Variable};

/// `w -= rate * g`.
#[derive(Clone, Debug)]
pub struct Sgd {
    rate: Rate,
}

impl Sgd {
    /// With this learning rate.
    #[doc(alias = "GradientDescentOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Sgd {
        Sgd { rate: rate.into() }
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[(Variable, Tensor)]) -> Vec<Op> {
        let step = |(v, g): &(Variable, Tensor)| v.update(|w| w - g * self.rate.tensor(graph, v.dtype()));
        gradients.iter().map(step).collect()
    }
}
