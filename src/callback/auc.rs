//! Areas under the curves of a binary classifier.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed, zeros_and_ones};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The area under the ROC curve, `validation_auc`, and the average precision,
/// `validation_average_precision`, of the scores of a binary classifier.
///
/// Both are exact: all scores of a pass are kept and sorted. The area is the probability that an
/// example with label 1 has a larger score than one with label 0, where equal scores count half. The
/// average precision is the sum of the precisions at all thresholds, weighted by the increase in
/// recall. The area is NaN if all labels are equal, and both are NaN if no label is 1.
#[derive(Clone, Debug)]
pub struct Auc {
    score: String,
    label: String,
    prefix: String,
    examples: Vec<(f64, bool)>,
}

impl Auc {
    /// Reads the scores, such as logits or probabilities, and the labels, zeros and ones, with these
    /// names in the tower.
    pub fn new(score: impl Into<String>, label: impl Into<String>) -> Auc {
        Auc { score: score.into(), label: label.into(), prefix: PREFIX.into(), examples: Vec::new() }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Auc {
        Auc { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for Auc {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![tower.get_tensor(&self.score)?, tower.get_tensor(&self.label)?])
    }

    fn start(&mut self) {
        self.examples.clear();
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let (scores, labels) = (values[0].to_f64_vec(), zeros_and_ones(&values[1], &self.label)?);
        if scores.len() != labels.len() {
            return Err(Error::shape(format!("{} scores and {} labels", scores.len(), labels.len())));
        }
        if let Some(i) = scores.iter().position(|score| score.is_nan()) {
            return Err(Error::argument(format!("element {i} of {} is NaN", self.score)));
        }
        self.examples.extend(scores.into_iter().zip(labels));
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let mut examples = std::mem::take(&mut self.examples);
        examples.sort_by(|a, b| b.0.total_cmp(&a.0));
        let positive = examples.iter().filter(|(_, label)| *label).count() as f64;
        let negative = examples.len() as f64 - positive;
        // Examples at or above the threshold, which decreases from one distinct score to the next.
        let (mut hits, mut false_alarms, mut ordered, mut precision) = (0.0, 0.0, 0.0, 0.0);
        for equal in examples.chunk_by(|a, b| a.0 == b.0) {
            let new_hits = equal.iter().filter(|(_, label)| *label).count() as f64;
            let new_false_alarms = equal.len() as f64 - new_hits;
            ordered += new_false_alarms * (hits + 0.5 * new_hits);
            hits += new_hits;
            false_alarms += new_false_alarms;
            precision += new_hits * (hits / (hits + false_alarms));
        }
        let values = [ordered / (positive * negative), precision / positive];
        self.names().into_iter().zip(values).collect()
    }

    fn names(&self) -> Vec<String> {
        ["auc", "average_precision"].map(|what| prefixed(&self.prefix, what)).into()
    }
}
