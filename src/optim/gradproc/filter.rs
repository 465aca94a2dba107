//! Selection of gradients by variable name.

use super::GradProcessor;
use crate::graph::{Graph, NamePattern};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;

/// Keeps only the gradients of variables whose whole name matches a pattern. Other variables are
/// not updated.
#[derive(Clone, Debug)]
pub struct FilterGradient {
    pattern: NamePattern,
}

impl FilterGradient {
    /// Keeps the gradients of variables that match `pattern`.
    #[track_caller]
    pub fn keep(pattern: &str) -> FilterGradient {
        FilterGradient { pattern: NamePattern::new(pattern) }
    }
}

impl GradProcessor for FilterGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, mut gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_pattern(graph, "FilterGradient", &self.pattern, &gradients);
        gradients.retain(|g| self.pattern.matches(g.variable.name()));
        gradients
    }
}
