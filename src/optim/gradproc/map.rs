//! Gradients of some variables, changed by a function.

use super::GradProcessor;
use crate::graph::{Graph, NamePattern, Tensor, Variable};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;
use std::fmt;

type Change = Box<dyn Fn(&Variable, &Tensor) -> Option<Tensor>>;

/// A function of the gradients of variables whose whole name matches a pattern. Where it gives `None`, the variable is
/// not updated.
pub struct MapGradient {
    pattern: NamePattern,
    change: Change,
}

impl MapGradient {
    /// `change` of the gradients of variables that match `pattern`; `.*` is all of them.
    #[track_caller]
    pub fn new(
        pattern: &str,
        change: impl Fn(&Variable, &Tensor) -> Option<Tensor> + 'static,
    ) -> MapGradient {
        MapGradient { pattern: NamePattern::new(pattern), change: Box::new(change) }
    }
}

impl GradProcessor for MapGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_pattern(graph, "MapGradient", &self.pattern, &gradients);
        let changed = |g: Gradient| match self.pattern.matches(g.variable.name()) {
            true => (self.change)(&g.variable, &g.value).map(|value| g.with_value(value)),
            false => Some(g),
        };
        gradients.into_iter().filter_map(changed).collect()
    }
}

impl fmt::Debug for MapGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapGradient").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}
