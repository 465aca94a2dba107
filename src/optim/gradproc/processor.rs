//! The gradient processor interface, and an optimizer with processors.

use crate::graph::{Graph, Op};
use crate::optim::{Gradient, Optimizer};
use std::fmt::Debug;
use tensorpack_tensor::{Error, ErrorKind};

/// A transformation of gradients before they reach an optimizer.
pub trait GradProcessor: Debug {
    /// Returns the processed gradients. A variable whose gradient is omitted is not updated.
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient>;
}

impl<P: GradProcessor + ?Sized> GradProcessor for Box<P> {
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        (**self).process(graph, gradients)
    }
}

/// An optimizer with gradient processors in front of it.
#[derive(Debug)]
pub struct Processed {
    inner: Box<dyn Optimizer>,
    processors: Vec<Box<dyn GradProcessor>>,
}

impl Processed {
    /// Wraps `inner`, with no processors yet.
    pub fn new(inner: impl Optimizer + 'static) -> Processed {
        Processed { inner: inner.boxed(), processors: Vec::new() }
    }

    /// Adds a processor after the existing ones.
    #[must_use]
    pub fn process(mut self, processor: impl GradProcessor + 'static) -> Processed {
        self.processors.push(Box::new(processor));
        self
    }
}

impl Optimizer for Processed {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        let processed = self.processors.iter().fold(gradients.to_vec(), |g, p| p.process(graph, g));
        if processed.is_empty() && !gradients.is_empty() {
            let error = Error::new(ErrorKind::Gradient, "no gradient is left, so nothing would be trained");
            graph.record("Processed", &[], error.note("the processors dropped every gradient"));
        }
        self.inner.apply(graph, &processed)
    }
}
