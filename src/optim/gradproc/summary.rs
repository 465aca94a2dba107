//! How large gradients are, for the monitors.

use super::GradProcessor;
use crate::graph::{Graph, MOVING_SUMMARIES, NamePattern};
use crate::optim::Gradient;
use crate::optim::gradient::check_pattern;

/// The root mean square of each gradient, `NAME-grad/rms`, among the moving summaries. Gradients stay as they are.
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
    /// Of all gradients.
    pub fn new() -> SummaryGradient {
        SummaryGradient { pattern: NamePattern::new(".*") }
    }

    /// Only of variables whose whole name matches `pattern`.
    #[must_use]
    #[track_caller]
    pub fn of(self, pattern: &str) -> SummaryGradient {
        SummaryGradient { pattern: NamePattern::new(pattern) }
    }
}

impl GradProcessor for SummaryGradient {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_pattern(graph, "SummaryGradient", &self.pattern, &gradients);
        for Gradient { variable, value, .. } in &gradients {
            let name = format!("{}-grad/rms", variable.name());
            // Once a variable, however many costs it has gradients of.
            if self.pattern.matches(variable.name()) && graph.tensor(&name).is_err() {
                let rms = value.square().mean().sqrt();
                graph.at_root(|| graph.add_to_collection(MOVING_SUMMARIES, &rms.named(&name)));
            }
        }
        gradients
    }
}
