//! How variables are doing.

use super::{Callback, GraphCx, Statistic, TrainCx, When};
use regex_lite::Regex;
use tensorpack_tensor::{Error, HostTensor, Result};

/// What is told of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The mean of its elements.
    Mean,
    /// The root of the mean of their squares.
    Rms,
    /// The share of zeros.
    Sparsity,
    /// How its elements are spread.
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

    /// The number, if it is one.
    fn number(self, values: &[f64]) -> Option<f64> {
        let mean = |of: fn(&f64) -> f64| values.iter().map(of).sum::<f64>() / values.len() as f64;
        match self {
            Summary::Mean => Some(mean(|x| *x)),
            Summary::Rms => Some(mean(|x| x * x).sqrt()),
            Summary::Sparsity => Some(mean(|x| f64::from(u8::from(*x == 0.0)))),
            Summary::Histogram => None,
        }
    }
}

/// Puts summaries of the variables that are trained, at every trigger: `param-summary/NAME-rms` and the like.
///
/// ```
/// use tensorpack::callback::{ParamSummary, Summary};
/// let weights = ParamSummary::new(".*/W", [Summary::Rms, Summary::Histogram]).and(".*/b", [Summary::Mean]);
/// ```
#[derive(Debug)]
#[doc(alias = "add_param_summary")]
pub struct ParamSummary {
    patterns: Vec<(String, Vec<Summary>)>,
    /// Variables and what is put of each.
    found: Vec<(String, Summary)>,
}

impl ParamSummary {
    /// Of the variables whose whole name matches a regular expression.
    pub fn new(pattern: impl Into<String>, kinds: impl IntoIterator<Item = Summary>) -> ParamSummary {
        ParamSummary { patterns: Vec::new(), found: Vec::new() }.and(pattern, kinds)
    }

    /// And of these.
    #[must_use]
    pub fn and(
        mut self,
        pattern: impl Into<String>,
        kinds: impl IntoIterator<Item = Summary>,
    ) -> ParamSummary {
        self.patterns.push((pattern.into(), kinds.into_iter().collect()));
        self
    }
}

fn tag(variable: &str, kind: Summary) -> String {
    format!("param-summary/{variable}-{}", kind.suffix())
}

impl Callback for ParamSummary {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let names: Vec<String> = g.variables().filter(|v| v.trainable).map(|v| v.name).collect();
        for (pattern, kinds) in &self.patterns {
            let whole = Regex::new(&format!("^(?:{pattern})$"))
                .map_err(|e| Error::argument(format!("{pattern:?} is no regular expression: {e}")))?;
            let matching: Vec<&String> = names.iter().filter(|n| whole.is_match(n)).collect();
            if matching.is_empty() {
                log::warn!("no trained variable is called {pattern}: nothing to summarise");
            }
            self.found.extend(matching.iter().flat_map(|n| kinds.iter().map(|k| (n.to_string(), *k))));
        }
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut last: Option<(&str, HostTensor, Vec<f64>)> = None;
        for (name, kind) in &self.found {
            if last.as_ref().is_none_or(|(n, ..)| n != name) {
                let value = cx.session().read(name)?;
                let numbers = value.to_f64_vec();
                last = Some((name, value, numbers));
            }
            let Some((_, value, numbers)) = &last else { continue };
            match kind.number(numbers) {
                Some(number) => cx.put_scalar(&tag(name, *kind), number),
                None => cx.put_histogram(&tag(name, *kind), value),
            }
        }
        Ok(())
    }

    fn makes(&self) -> Vec<Statistic> {
        let numbers = self.found.iter().filter(|(_, kind)| *kind != Summary::Histogram);
        numbers.map(|(name, kind)| Statistic::new(tag(name, *kind), When::Epoch)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_tensor() {
        let values = [0.0, 3.0, -4.0, 0.0];
        assert_eq!(Summary::Mean.number(&values), Some(-0.25));
        assert_eq!(Summary::Rms.number(&values), Some(2.5));
        assert_eq!(Summary::Sparsity.number(&values), Some(0.5));
        assert_eq!(Summary::Histogram.number(&values), None);
    }
}
