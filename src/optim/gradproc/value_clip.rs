//! Gradient clipping by value.

use super::GradProcessor;
use crate::graph::Graph;
use crate::optim::Gradient;
use crate::optim::setting::{Allowed, check_setting};

/// Clips every element of every gradient to `-limit..=limit`.
#[derive(Clone, Debug)]
pub struct ValueClip {
    limit: f64,
}

impl ValueClip {
    /// Creates a processor that limits absolute values to `limit`.
    #[doc(alias = "clip_grad_value")]
    pub fn new(limit: f64) -> ValueClip {
        ValueClip { limit }
    }
}

impl GradProcessor for ValueClip {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_setting(graph, "ValueClip", "the limit", self.limit, Allowed::Positive);
        let clip = |g: Gradient| {
            let value = g.value.clip(-self.limit, self.limit);
            g.with_value(value)
        };
        gradients.into_iter().map(clip).collect()
    }
}
