//! What a gradient processor is, and the optimizer behind some.

use crate::graph::{Graph, Op};
use crate::optim::{Gradient, Optimizer};
use std::fmt::Debug;
use tensorpack_tensor::{Error, ErrorKind};

/// Something done to gradients on their way to an optimizer.
pub trait GradProcessor: Debug {
    /// The gradients to go on with. A variable whose gradient is left out is not updated.
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient>;
}

impl<P: GradProcessor + ?Sized> GradProcessor for Box<P> {
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        (**self).process(graph, gradients)
    }
}

/// An optimizer behind processors.
#[derive(Debug)]
pub struct Processed {
    inner: Box<dyn Optimizer>,
    processors: Vec<Box<dyn GradProcessor>>,
}

impl Processed {
    /// `inner`, so far without processors.
    pub fn new(inner: impl Optimizer + 'static) -> Processed {
        Processed { inner: inner.boxed(), processors: Vec::new() }
    }

    /// With one more processor, after those there are.
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
            let error = Error::new(ErrorKind::Gradient, "no gradient is left: nothing would be trained");
            graph.record("Processed", &[], error.note("every variable was dropped by a processor"));
        }
        self.inner.apply(graph, &processed)
    }
}
