//! Word error rate of a recognizer.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use super::token_sequences::{sequences, token_tensor};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The word error rate, `validation_wer`: the insertions, deletions and substitutions that turn all
/// references into the predictions, divided by the number of words in the references.
///
/// Both tensors are `[batch, time]`, with a word's number in every element. A sequence ends before
/// its first negative element. With characters instead of words this is the character error rate.
/// NaN if the references have no words.
#[derive(Clone, Debug)]
#[doc(alias = "edit_distance")]
#[doc(alias = "CharacterErrorRate")]
pub struct WordErrorRate {
    prediction: String,
    reference: String,
    end: Option<i64>,
    prefix: String,
    name: String,
    edits: u64,
    words: u64,
}

impl WordErrorRate {
    /// Reads the predicted and the reference sequences with these names in the tower.
    pub fn new(prediction: impl Into<String>, reference: impl Into<String>) -> WordErrorRate {
        WordErrorRate {
            prediction: prediction.into(),
            reference: reference.into(),
            end: None,
            prefix: PREFIX.into(),
            name: "wer".into(),
            edits: 0,
            words: 0,
        }
    }

    /// Ends sequences before the first `token` too, such as a padding or end token.
    #[must_use]
    pub fn end(self, token: i64) -> WordErrorRate {
        WordErrorRate { end: Some(token), ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistic.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> WordErrorRate {
        WordErrorRate { prefix: prefix.into(), ..self }
    }

    /// Sets the name after the prefix. Defaults to `wer`.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> WordErrorRate {
        WordErrorRate { name: name.into(), ..self }
    }
}

/// Returns the Levenshtein distance of two sequences.
pub(super) fn edit_distance(a: &[i64], b: &[i64]) -> u64 {
    // distances[j] is the distance of the part of `a` that was read and the first j elements of `b`.
    let mut distances: Vec<u64> = (0..=b.len() as u64).collect();
    for x in a {
        let mut diagonal = distances[0];
        distances[0] += 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + u64::from(x != y);
            diagonal = distances[j + 1];
            distances[j + 1] = substituted.min(diagonal + 1).min(distances[j] + 1);
        }
    }
    distances[b.len()]
}

impl Inferencer for WordErrorRate {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        [&self.prediction, &self.reference].into_iter().map(|name| token_tensor(tower, name, &[2])).collect()
    }

    fn start(&mut self) {
        (self.edits, self.words) = (0, 0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let (predicted, references) = (sequences(&values[0], self.end), sequences(&values[1], self.end));
        if predicted.len() != references.len() {
            let why = format!("{} predictions and {} references", predicted.len(), references.len());
            return Err(Error::shape(why));
        }
        for (predicted, reference) in predicted.iter().zip(&references) {
            self.edits += edit_distance(predicted, reference);
            self.words += reference.len() as u64;
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let rate = if self.words > 0 { self.edits as f64 / self.words as f64 } else { f64::NAN };
        self.names().into_iter().map(|name| (name, rate)).collect()
    }

    fn names(&self) -> Vec<String> {
        vec![prefixed(&self.prefix, &self.name)]
    }
}
