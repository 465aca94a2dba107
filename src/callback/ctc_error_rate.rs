//! Label error rate of a model trained with CTC.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use super::token_sequences::{sequences, token_tensor};
use super::word_error_rate::edit_distance;
use crate::ctc::ctc_greedy_decode;
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The label error rate, `validation_label_error`, and the fraction of wrong sequences,
/// `validation_sequence_error`, of the labels that greedy decoding finds.
///
/// The label error rate is the number of insertions, deletions and substitutions that turn all
/// references into the decoded labels, divided by the number of labels in the references. Both are NaN
/// without labels.
#[derive(Clone, Debug)]
#[doc(alias = "edit_distance")]
pub struct CtcErrorRate {
    logits: String,
    lengths: String,
    labels: String,
    blank: usize,
    prefix: String,
    edits: u64,
    expected: u64,
    wrong: u64,
    examples: u64,
}

impl CtcErrorRate {
    /// Reads the tensors with these names in the tower: logits `[batch, time, classes]`, the number of
    /// steps of each example `[batch]`, and labels `[batch, length]`, which end before their first
    /// negative element.
    pub fn new(
        logits: impl Into<String>,
        lengths: impl Into<String>,
        labels: impl Into<String>,
    ) -> CtcErrorRate {
        CtcErrorRate {
            logits: logits.into(),
            lengths: lengths.into(),
            labels: labels.into(),
            blank: 0,
            prefix: PREFIX.into(),
            edits: 0,
            expected: 0,
            wrong: 0,
            examples: 0,
        }
    }

    /// Sets the class of the blank (default: 0).
    #[must_use]
    pub fn blank(self, blank: usize) -> CtcErrorRate {
        CtcErrorRate { blank, ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> CtcErrorRate {
        CtcErrorRate { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for CtcErrorRate {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let logits = tower.get_tensor(&self.logits)?;
        if logits.rank() != 3 || !logits.dtype().is_float() {
            let found = format!("{}{}", logits.dtype(), logits.shape());
            return Err(Error::shape(format!(
                "{} is {found}, not float logits [batch, time, classes]",
                self.logits
            )));
        }
        Ok(vec![logits, token_tensor(tower, &self.lengths, &[1])?, token_tensor(tower, &self.labels, &[2])?])
    }

    fn start(&mut self) {
        (self.edits, self.expected, self.wrong, self.examples) = (0, 0, 0, 0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let decoded = ctc_greedy_decode(&values[0], &values[1], self.blank)?;
        let references = sequences(&values[2], None);
        if decoded.len() != references.len() {
            let why = format!("{} examples of logits and {} of labels", decoded.len(), references.len());
            return Err(Error::shape(why));
        }
        for (decoded, reference) in decoded.iter().zip(&references) {
            let decoded: Vec<i64> = decoded.iter().map(|&label| label as i64).collect();
            self.edits += edit_distance(&decoded, reference);
            self.expected += reference.len() as u64;
            self.wrong += u64::from(decoded != *reference);
            self.examples += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let ratio = |n: u64, of: u64| if of > 0 { n as f64 / of as f64 } else { f64::NAN };
        let rates = [ratio(self.edits, self.expected), ratio(self.wrong, self.examples)];
        self.names().into_iter().zip(rates).collect()
    }

    fn names(&self) -> Vec<String> {
        ["label_error", "sequence_error"].iter().map(|name| prefixed(&self.prefix, name)).collect()
    }
}
