//! What an optimizer is.

use super::Gradient;
use super::gradproc::{GradProcessor, Processed};
use crate::graph::{Graph, Op};
use std::fmt::Debug;

/// A rule that updates variables by their gradients. Optimizers that wrap another one hand it gradients of their own
/// making, or add to its updates; so wrappers nest, and the outermost sees the gradients first.
pub trait Optimizer: Debug {
    /// Adds the updates of all these variables to the graph.
    ///
    /// State is made of variables: [`Gradient::slot`]. An update is made with
    /// [`Variable::update`](crate::graph::Variable::update) or `assign`, so that [`Accumulate`](super::Accumulate) can
    /// hold it back.
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op>;

    /// In a box, for code that chooses among optimizers.
    fn boxed(self) -> Box<dyn Optimizer>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }

    /// Behind a processor, which sees the gradients first. More of them follow in the order they are given.
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
