//! Prefix beam search: the most probable labels over all their alignments.

use super::scores::Scores;
use std::collections::BTreeMap;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Labels and the logarithm of their probability.
#[derive(Clone, Debug, PartialEq)]
pub struct CtcHypothesis {
    /// The labels.
    pub labels: Vec<usize>,
    /// The logarithm of the probability of the alignments that the search kept.
    pub log_probability: f64,
}

/// Searches for the most probable labels by extending the best prefixes step by step. Other than
/// [greedy decoding](super::ctc_greedy_decode), it adds up the probabilities of all alignments of a
/// prefix.
///
/// ```
/// use tensorpack::ctc::CtcBeamSearch;
/// use tensorpack::{HostTensor, Result};
///
/// # fn main() -> Result<()> {
/// // Two steps, each 0.6 for the blank and 0.4 for class 1. The best alignment has no label, but
/// // class 1 has three alignments.
/// let step = [0.6f32.ln(), 0.4f32.ln()];
/// let logits = HostTensor::new([1, 2, 2], [step, step].concat())?;
/// let lengths = HostTensor::new([1], vec![2i32])?;
/// let found = CtcBeamSearch::new(4).decode(&logits, &lengths)?;
/// assert_eq!(found[0][0].labels, [1]);
/// assert!((found[0][0].log_probability.exp() - 0.64).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ctc_beam_search_decoder")]
pub struct CtcBeamSearch {
    width: usize,
    blank: usize,
}

/// The log probabilities of a prefix: of the alignments that end in a blank, and of those that end in
/// its last label.
#[derive(Clone, Copy)]
struct Prefix {
    blank: f64,
    label: f64,
}

impl Prefix {
    const IMPOSSIBLE: Prefix = Prefix { blank: f64::NEG_INFINITY, label: f64::NEG_INFINITY };

    fn total(&self) -> f64 {
        add(self.blank, self.label)
    }
}

/// Returns `ln(exp(a) + exp(b))`.
fn add(a: f64, b: f64) -> f64 {
    let top = a.max(b);
    if top == f64::NEG_INFINITY { top } else { top + ((a - top).exp() + (b - top).exp()).ln() }
}

impl CtcBeamSearch {
    /// Creates a search that keeps this many prefixes, with class 0 as the blank.
    pub fn new(width: usize) -> CtcBeamSearch {
        CtcBeamSearch { width, blank: 0 }
    }

    /// Sets the class of the blank (default: 0).
    #[must_use]
    pub fn blank(self, blank: usize) -> CtcBeamSearch {
        CtcBeamSearch { blank, ..self }
    }

    /// Returns the hypotheses of each example, best first, at most as many as the search is wide. Takes
    /// logits `[batch, time, classes]` and the number of steps of each example, integers `[batch]`.
    pub fn decode(&self, logits: &HostTensor, lengths: &HostTensor) -> Result<Vec<Vec<CtcHypothesis>>> {
        if self.width == 0 {
            return Err(Error::argument("a beam search must keep at least one prefix"));
        }
        let scores = Scores::new(logits, lengths, self.blank)?;
        Ok(scores.examples().map(|mut steps| self.search(&mut steps)).collect())
    }

    fn search(&self, steps: &mut dyn Iterator<Item = &[f64]>) -> Vec<CtcHypothesis> {
        let mut beam = vec![(Vec::new(), Prefix { blank: 0.0, label: f64::NEG_INFINITY })];
        for step in steps {
            // Ordered, so that equal probabilities give the same result every time.
            let mut next: BTreeMap<Vec<usize>, Prefix> = BTreeMap::new();
            for (labels, prefix) in &beam {
                let same = next.entry(labels.clone()).or_insert(Prefix::IMPOSSIBLE);
                same.blank = add(same.blank, prefix.total() + step[self.blank]);
                if let Some(&last) = labels.last() {
                    same.label = add(same.label, prefix.label + step[last]);
                }
                for (class, &score) in step.iter().enumerate().filter(|(class, _)| *class != self.blank) {
                    // A repeated label needs a blank between.
                    let before = if labels.last() == Some(&class) { prefix.blank } else { prefix.total() };
                    let longer: Vec<usize> = labels.iter().copied().chain([class]).collect();
                    let longer = next.entry(longer).or_insert(Prefix::IMPOSSIBLE);
                    longer.label = add(longer.label, before + score);
                }
            }
            // A label that is repeated without a blank between is impossible, and so is a probability of zero.
            beam = next.into_iter().filter(|(_, prefix)| prefix.total() > f64::NEG_INFINITY).collect();
            beam.sort_by(|a, b| b.1.total().total_cmp(&a.1.total()));
            beam.truncate(self.width);
        }
        let hypothesis = |(labels, prefix): (Vec<usize>, Prefix)| CtcHypothesis {
            labels,
            log_probability: prefix.total(),
        };
        beam.into_iter().map(hypothesis).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::CounterRng;

    /// Adds up the probabilities of every alignment of every label sequence.
    fn exhaustive(steps: &[Vec<f64>]) -> BTreeMap<Vec<usize>, f64> {
        let mut alignments = vec![(Vec::new(), 1.0)];
        for step in steps {
            let longer = |(path, p): &(Vec<usize>, f64), class: usize| {
                (path.iter().copied().chain([class]).collect::<Vec<usize>>(), p * step[class])
            };
            alignments = alignments
                .iter()
                .flat_map(|a| (0..step.len()).map(|c| longer(a, c)).collect::<Vec<_>>())
                .collect();
        }
        let mut labels: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (mut path, p) in alignments {
            path.dedup();
            path.retain(|&class| class != 0);
            *labels.entry(path).or_default() += p;
        }
        labels
    }

    #[test]
    fn a_wide_beam_finds_what_an_exhaustive_search_finds() {
        for seed in 0..20 {
            let rng = CounterRng::new(seed, "beam");
            let logits: Vec<f32> = (0..15).map(|i| (rng.uniform(0, i) * 4.0) as f32).collect();
            let step = |row: &[f32]| {
                let sum: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
                row.iter().map(|&v| f64::from(v).exp() / sum).collect::<Vec<f64>>()
            };
            let steps: Vec<Vec<f64>> = logits.chunks(3).take(4).map(step).collect();
            let expected = exhaustive(&steps);
            let logits = HostTensor::new([1, 5, 3], logits).unwrap();
            let lengths = HostTensor::new([1], vec![4i32]).unwrap();
            let found = CtcBeamSearch::new(1000).decode(&logits, &lengths).unwrap().remove(0);
            assert_eq!(found.len(), expected.len());
            for hypothesis in &found {
                let p = hypothesis.log_probability.exp();
                assert!((p - expected[&hypothesis.labels]).abs() < 1e-12, "{hypothesis:?}");
            }
            let best = expected.iter().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            assert_eq!(found[0].labels, *best.0);
        }
    }
}
