//! Gradients of some variables, scaled.

use super::GradProcessor;
use crate::graph::{Graph, NamePattern};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;

/// Gradients times a factor, for the variables whose whole name matches a pattern. The first pattern that matches
/// counts; factor 0 leaves the variable as it is, with no update at all.
///
/// With [`Adam`](crate::optim::Adam) and others that divide by the gradient's size a factor changes little: to change
/// the rate, see [`ParamGroups`](crate::optim::ParamGroups).
#[derive(Clone, Debug)]
pub struct ScaleGradient {
    rules: Vec<(NamePattern, f64)>,
}

impl ScaleGradient {
    /// Scales the gradients of variables that match `pattern`.
    #[track_caller]
    pub fn new(pattern: &str, factor: f64) -> ScaleGradient {
        ScaleGradient { rules: vec![(NamePattern::new(pattern), factor)] }
    }

    /// And of those that match this one, and none before it.
    #[must_use]
    #[track_caller]
    pub fn and(mut self, pattern: &str, factor: f64) -> ScaleGradient {
        self.rules.push((NamePattern::new(pattern), factor));
        self
    }
}

impl GradProcessor for ScaleGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        self.rules.iter().for_each(|(pattern, _)| check_pattern(graph, "ScaleGradient", pattern, &gradients));
        let scale = |g: Gradient| {
            let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(g.variable.name()));
            match rule.map_or(1.0, |(_, factor)| *factor) {
                0.0 => None,
                1.0 => Some(g),
                factor => {
                    let value = &g.value * factor;
                    Some(g.with_value(value))
                }
            }
        };
        gradients.into_iter().filter_map(scale).collect()
    }
}
