//! Summaries of gradient magnitudes for the monitors.

use super::GradProcessor;
use crate::graph::{Graph, MOVING_SUMMARIES, NamePattern};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;

/// Adds the root mean square of each gradient, `NAME-grad/rms`, to the moving summaries. The
/// gradients are not changed.
#[derive(Clone, Debug)]
pub struct SummaryGradient {
    pattern: NamePattern,
}

impl Default for SummaryGradient {
    fn default() -> SummaryGradient {
        SummaryGradient::new()
    }
}

impl SummaryGradient {
    /// Creates a processor that summarizes all gradients.
    pub fn new() -> SummaryGradient {
        SummaryGradient { pattern: NamePattern::new(".*") }
    }

    /// Summarizes only the gradients of variables whose whole name matches the regular expression
    /// `pattern` (see [`NamePattern`]).
    #[must_use]
    #[track_caller]
    #[doc(alias = "of")]
    pub fn matching(self, pattern: &str) -> SummaryGradient {
        SummaryGradient { pattern: NamePattern::new(pattern) }
    }
}

impl GradProcessor for SummaryGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_pattern(graph, "SummaryGradient", &self.pattern, &gradients);
        for Gradient { variable, value, .. } in &gradients {
            let name = format!("{}-grad/rms", variable.name());
            // One summary per variable, even if several costs have gradients with respect to it.
            if self.pattern.matches(variable.name()) && graph.find_tensor(&name).is_none() {
                let rms = value.square().mean().sqrt();
                graph.at_root(|| graph.add_to_collection(MOVING_SUMMARIES, &rms.named(&name)));
            }
        }
        gradients
    }
}
