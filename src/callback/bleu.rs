//! BLEU score of translations.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use super::token_sequences::{sequences, token_tensor};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use std::collections::HashMap;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The longest n-grams that are counted.
const MAX_N: usize = 4;

/// The BLEU score of a corpus, `validation_bleu`, from 0 to 100 (Papineni et al., 2002): the
/// geometric mean of the precisions of n-grams up to length 4, times the brevity penalty.
///
/// Predictions are `[batch, time]`, with a token in every element. References are `[batch, time]`,
/// or `[batch, references, time]` for several references per prediction, of which those without
/// tokens are skipped. A sequence ends before its first negative element. There is no smoothing: the
/// score is 0 if no n-gram of some length matches.
#[derive(Clone, Debug)]
pub struct Bleu {
    prediction: String,
    reference: String,
    end: Option<i64>,
    prefix: String,
    /// For every length of n-grams, the matches and the n-grams of the predictions.
    matches: [u64; MAX_N],
    ngrams: [u64; MAX_N],
    predicted: u64,
    referenced: u64,
}

impl Bleu {
    /// Reads the predicted and the reference sequences with these names in the tower.
    pub fn new(prediction: impl Into<String>, reference: impl Into<String>) -> Bleu {
        Bleu {
            prediction: prediction.into(),
            reference: reference.into(),
            end: None,
            prefix: PREFIX.into(),
            matches: [0; MAX_N],
            ngrams: [0; MAX_N],
            predicted: 0,
            referenced: 0,
        }
    }

    /// Ends sequences before the first `token` too, such as a padding or end token.
    #[must_use]
    pub fn end(self, token: i64) -> Bleu {
        Bleu { end: Some(token), ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistic.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Bleu {
        Bleu { prefix: prefix.into(), ..self }
    }

    /// Counts one prediction.
    fn add(&mut self, predicted: &[i64], references: &[&[i64]]) {
        self.predicted += predicted.len() as u64;
        // The closest length; the shorter of two that are equally close.
        let distance = |reference: &&&[i64]| (reference.len().abs_diff(predicted.len()), reference.len());
        self.referenced += references.iter().min_by_key(distance).map_or(0, |closest| closest.len() as u64);
        for n in 1..=MAX_N {
            let references: Vec<_> = references.iter().map(|reference| counted(reference, n)).collect();
            for (ngram, count) in counted(predicted, n) {
                let most = references.iter().filter_map(|counts| counts.get(ngram)).max().copied();
                self.matches[n - 1] += count.min(most.unwrap_or(0));
                self.ngrams[n - 1] += count;
            }
        }
    }
}

/// Returns how often every n-gram occurs.
fn counted(tokens: &[i64], n: usize) -> HashMap<&[i64], u64> {
    let mut counts = HashMap::new();
    for ngram in tokens.windows(n) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}

impl Inferencer for Bleu {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![token_tensor(tower, &self.prediction, &[2])?, token_tensor(tower, &self.reference, &[2, 3])?])
    }

    fn start(&mut self) {
        (self.matches, self.ngrams, self.predicted, self.referenced) = ([0; MAX_N], [0; MAX_N], 0, 0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let (predicted, references) = (sequences(&values[0], self.end), sequences(&values[1], self.end));
        let (found, expected) = (values[1].sizes(), values[0].sizes());
        if found.first() != expected.first() {
            return Err(Error::shape(format!("references {found:?} for predictions {expected:?}")));
        }
        let count = references.len() / predicted.len().max(1);
        for (i, predicted) in predicted.iter().enumerate() {
            let own = references[i * count..(i + 1) * count].iter();
            let own: Vec<&[i64]> = own.filter(|r| count == 1 || !r.is_empty()).map(Vec::as_slice).collect();
            self.add(predicted, &own);
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let score = if self.matches.contains(&0) {
            0.0
        } else {
            let precisions = self.matches.iter().zip(&self.ngrams);
            let logs: f64 = precisions.map(|(&m, &n)| (m as f64 / n as f64).ln()).sum();
            let brevity = (1.0 - self.referenced as f64 / self.predicted as f64).min(0.0);
            100.0 * (logs / MAX_N as f64 + brevity).exp()
        };
        self.names().into_iter().map(|name| (name, score)).collect()
    }

    fn names(&self) -> Vec<String> {
        vec![prefixed(&self.prefix, "bleu")]
    }
}
