//! The optimizer interface.

use super::Gradient;
use super::gradproc::{GradProcessor, Processed};
use crate::graph::{Graph, Op};
use std::fmt::Debug;

/// A rule that updates variables with their gradients. A wrapper passes modified gradients to its
/// inner optimizer, or adds to its updates. Wrappers nest, and the outermost sees the gradients
/// first.
pub trait Optimizer: Debug {
    /// Adds the updates of all these variables to the graph.
    ///
    /// Keep state in variables, see [`Gradient::slot`]. Create updates with
    /// [`Variable::update`](crate::graph::Variable::update) or `assign`, so that
    /// [`Accumulate`](super::Accumulate) can gate them.
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op>;

    /// Returns the optimizer in a box, for code that selects one at run time.
    fn boxed(self) -> Box<dyn Optimizer>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }

    /// Adds a gradient processor in front of the optimizer. Further processors run in the order
    /// they are added.
    #[doc(alias = "apply_grad_processors")]
    fn process(self, processor: impl GradProcessor + 'static) -> Processed
    where
        Self: Sized + 'static,
    {
        Processed::new(self).process(processor)
    }
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        (**self).apply(graph, gradients)
    }
}
