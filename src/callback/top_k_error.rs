//! Top-k error of a classifier.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{HostTensor, Result};

/// The fraction of examples whose label is not among the `k` classes with the largest scores:
/// `validation_topK_error`, such as `validation_top5_error`.
///
/// Follows [`Tensor::in_top_k`]: equal scores share a rank, and a row with a score that is not
/// finite counts as an error.
#[derive(Clone, Debug)]
pub struct TopKError {
    scores: String,
    labels: String,
    k: usize,
    prefix: String,
    wrong: u64,
    examples: u64,
}

impl TopKError {
    /// Reads the scores `[..., classes]` and the integer labels `[...]` with these names in the
    /// tower.
    pub fn new(scores: impl Into<String>, labels: impl Into<String>, k: usize) -> TopKError {
        let (scores, labels) = (scores.into(), labels.into());
        TopKError { scores, labels, k, prefix: PREFIX.into(), wrong: 0, examples: 0 }
    }

    /// Sets the [prefix](Inferencer) of the statistic.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> TopKError {
        TopKError { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for TopKError {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let (scores, labels) = (tower.get_tensor(&self.scores)?, tower.get_tensor(&self.labels)?);
        Ok(vec![scores.in_top_k(&labels, self.k)])
    }

    fn start(&mut self) {
        (self.wrong, self.examples) = (0, 0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let hits = values[0].as_slice::<bool>()?;
        self.wrong += hits.iter().filter(|hit| !**hit).count() as u64;
        self.examples += hits.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let error = if self.examples > 0 { self.wrong as f64 / self.examples as f64 } else { 0.0 };
        self.names().into_iter().map(|name| (name, error)).collect()
    }

    fn names(&self) -> Vec<String> {
        vec![prefixed(&self.prefix, &format!("top{}_error", self.k))]
    }
}
