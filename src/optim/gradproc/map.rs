//! A user function applied to gradients.

use super::GradProcessor;
use crate::graph::{Graph, NamePattern, Tensor, Variable};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;
use std::fmt;

type Function = Box<dyn Fn(&Variable, &Tensor) -> Option<Tensor>>;

/// Applies a function to the gradients of variables whose whole name matches a pattern. If it
/// returns `None`, the variable is not updated.
pub struct MapGradient {
    pattern: NamePattern,
    function: Function,
}

impl MapGradient {
    /// Creates a processor that applies `function` to the gradients of variables that match
    /// `pattern`; `.*` matches all.
    #[track_caller]
    pub fn new(
        pattern: &str,
        function: impl Fn(&Variable, &Tensor) -> Option<Tensor> + 'static,
    ) -> MapGradient {
        MapGradient { pattern: NamePattern::new(pattern), function: Box::new(function) }
    }
}

impl GradProcessor for MapGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_pattern(graph, "MapGradient", &self.pattern, &gradients);
        let map = |g: Gradient| match self.pattern.matches(g.variable.name()) {
            true => (self.function)(&g.variable, &g.value).map(|value| g.with_value(value)),
            false => Some(g),
        };
        gradients.into_iter().filter_map(map).collect()
    }
}

impl fmt::Debug for MapGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapGradient").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}
