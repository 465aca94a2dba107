//! Reports summaries of trainable variables.

use super::{Callback, GraphCx, Statistic, TrainCx, When};
use crate::graph::NamePattern;
use tensorpack_tensor::{HostTensor, Result};

/// A kind of summary of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The mean of the elements.
    Mean,
    /// The root mean square of the elements.
    Rms,
    /// The fraction of zeros.
    Sparsity,
    /// A histogram of the elements.
    Histogram,
}

impl Summary {
    fn suffix(self) -> &'static str {
        match self {
            Summary::Mean => "mean",
            Summary::Rms => "rms",
            Summary::Sparsity => "sparsity",
            Summary::Histogram => "histogram",
        }
    }

    /// Returns the summary if it is a scalar.
    fn scalar(self, values: &[f64]) -> Option<f64> {
        let mean = |f: fn(&f64) -> f64| values.iter().map(f).sum::<f64>() / values.len() as f64;
        match self {
            Summary::Mean => Some(mean(|x| *x)),
            Summary::Rms => Some(mean(|x| x * x).sqrt()),
            Summary::Sparsity => Some(mean(|x| f64::from(u8::from(*x == 0.0)))),
            Summary::Histogram => None,
        }
    }
}

/// Reports summaries of trainable variables at every trigger, as `param-summary/NAME-rms` and so
/// on.
///
/// ```
/// use tensorpack::callback::{ParamSummary, Summary};
/// let weights = ParamSummary::new(".*/W", [Summary::Rms, Summary::Histogram]).and(".*/b", [Summary::Mean]);
/// ```
#[derive(Debug)]
#[doc(alias = "add_param_summary")]
pub struct ParamSummary {
    patterns: Vec<(NamePattern, Vec<Summary>)>,
    /// The matching variables with their kinds of summary.
    found: Vec<(String, Summary)>,
}

impl ParamSummary {
    /// Summarizes the variables whose whole name matches the regular expression `pattern` (see
    /// [`NamePattern`]).
    #[track_caller]
    pub fn new(pattern: &str, kinds: impl IntoIterator<Item = Summary>) -> ParamSummary {
        ParamSummary { patterns: Vec::new(), found: Vec::new() }.and(pattern, kinds)
    }

    /// Adds a pattern.
    #[must_use]
    #[track_caller]
    pub fn and(mut self, pattern: &str, kinds: impl IntoIterator<Item = Summary>) -> ParamSummary {
        self.patterns.push((NamePattern::new(pattern), kinds.into_iter().collect()));
        self
    }
}

fn tag(variable: &str, kind: Summary) -> String {
    format!("param-summary/{variable}-{}", kind.suffix())
}

impl Callback for ParamSummary {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let names: Vec<String> = g.variables().filter(|v| v.trainable).map(|v| v.name).collect();
        for (pattern, kinds) in &self.patterns {
            pattern.check_among("trainable variable", names.iter().map(String::as_str))?;
            let matching = names.iter().filter(|n| pattern.matches(n));
            self.found.extend(matching.flat_map(|n| kinds.iter().map(|k| (n.to_string(), *k))));
        }
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut last: Option<(&str, HostTensor, Vec<f64>)> = None;
        for (name, kind) in &self.found {
            if last.as_ref().is_none_or(|(n, ..)| n != name) {
                let value = cx.session().read(name)?;
                let elements = value.to_f64_vec();
                last = Some((name, value, elements));
            }
            let Some((_, value, elements)) = &last else { continue };
            match kind.scalar(elements) {
                Some(scalar) => cx.put_scalar(&tag(name, *kind), scalar),
                None => cx.put_histogram(&tag(name, *kind), value),
            }
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        let scalars = self.found.iter().filter(|(_, kind)| *kind != Summary::Histogram);
        scalars.map(|(name, kind)| Statistic::new(tag(name, *kind), When::Epoch)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_summaries() {
        let values = [0.0, 3.0, -4.0, 0.0];
        assert_eq!(Summary::Mean.scalar(&values), Some(-0.25));
        assert_eq!(Summary::Rms.scalar(&values), Some(2.5));
        assert_eq!(Summary::Sparsity.scalar(&values), Some(0.5));
        assert_eq!(Summary::Histogram.scalar(&values), None);
    }
}
