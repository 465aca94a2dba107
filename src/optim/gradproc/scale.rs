//! Scaling of gradients by variable name.

use super::GradProcessor;
use crate::graph::{Graph, NamePattern};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;

/// Multiplies the gradients of variables whose whole name matches a pattern by a factor. The first
/// matching pattern applies. With factor 0 the variable is not updated at all.
///
/// A factor has little effect with optimizers that divide by the gradient's magnitude, such as
/// [`Adam`](crate::optim::Adam). To change the learning rate, use
/// [`ParamGroups`](crate::optim::ParamGroups).
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

    /// Also scales the gradients of variables that match this pattern and no earlier one.
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
