//! Confusion matrix of a classifier or a segmentation model.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Counts of examples by label and prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfusionCounts {
    classes: usize,
    /// Rows are labels, columns are predictions.
    counts: Vec<u64>,
}

impl ConfusionCounts {
    /// Returns counts of zero.
    pub fn new(classes: usize) -> ConfusionCounts {
        ConfusionCounts { classes, counts: vec![0; classes * classes] }
    }

    /// Counts one example. Returns an error if the label or the prediction is not a class.
    pub fn add(&mut self, label: usize, prediction: usize) -> Result<()> {
        for (what, class) in [("label", label), ("prediction", prediction)] {
            if class >= self.classes {
                let why = format!("the {what} {class} is outside 0..{}", self.classes);
                return Err(Error::argument(why));
            }
        }
        self.counts[label * self.classes + prediction] += 1;
        Ok(())
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the number of examples with this label and this prediction, 0 if one of them is not a
    /// class.
    pub fn count(&self, label: usize, prediction: usize) -> u64 {
        match label < self.classes && prediction < self.classes {
            true => self.counts[label * self.classes + prediction],
            false => 0,
        }
    }

    /// Returns the fraction of examples whose prediction is the label, 0 without examples.
    pub fn accuracy(&self) -> f64 {
        let right = (0..self.classes).map(|c| self.count(c, c)).sum();
        ratio(right, self.counts.iter().sum())
    }

    /// Returns the fraction of predictions of this class that are right, 0 without such predictions.
    pub fn precision(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.predicted(class))
    }

    /// Returns the fraction of examples of this class that are predicted, 0 without such examples.
    pub fn recall(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.labelled(class))
    }

    /// Returns the harmonic mean of precision and recall, 0 if both are 0.
    pub fn f1(&self, class: usize) -> f64 {
        ratio(2 * self.count(class, class), self.labelled(class) + self.predicted(class))
    }

    /// Returns the intersection over union of the examples of this class and its predictions, 0 if
    /// there are neither.
    pub fn iou(&self, class: usize) -> f64 {
        let both = self.count(class, class);
        ratio(both, self.labelled(class) + self.predicted(class) - both)
    }

    /// Returns the mean of `metric` over the classes that are the label or the prediction of an
    /// example, 0 without examples.
    pub fn mean(&self, metric: impl Fn(&ConfusionCounts, usize) -> f64) -> f64 {
        let present = |c: &usize| self.labelled(*c) + self.predicted(*c) > 0;
        let values: Vec<f64> = (0..self.classes).filter(present).map(|c| metric(self, c)).collect();
        if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
    }

    /// Returns the number of examples with this label.
    fn labelled(&self, class: usize) -> u64 {
        (0..self.classes).map(|c| self.count(class, c)).sum()
    }

    /// Returns the number of examples with this prediction.
    fn predicted(&self, class: usize) -> u64 {
        (0..self.classes).map(|c| self.count(c, class)).sum()
    }
}

/// Returns the quotient of two counts, 0 if the second is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

/// Counts predictions by label, and reports `validation_accuracy`, `validation_macro_precision`,
/// `validation_macro_recall`, `validation_macro_f1` and `validation_mean_iou`.
///
/// Predictions and labels have the same shape: `[batch]` for a classifier, `[batch, height, width]`
/// for a segmentation model. The means are over the classes that occur as a label or a prediction,
/// as in scikit-learn's `average="macro"`.
#[derive(Clone, Debug)]
#[doc(alias = "MeanIoU")]
pub struct ConfusionMatrix {
    prediction: String,
    label: String,
    classes: usize,
    ignored: Option<i64>,
    prefix: String,
    counts: ConfusionCounts,
    last: Arc<Mutex<ConfusionCounts>>,
}

impl ConfusionMatrix {
    /// Reads the integer predictions and labels with these names in the tower. Both are below
    /// `classes`; another value is an error.
    pub fn new(prediction: impl Into<String>, label: impl Into<String>, classes: usize) -> ConfusionMatrix {
        let counts = ConfusionCounts::new(classes);
        ConfusionMatrix {
            prediction: prediction.into(),
            label: label.into(),
            classes,
            ignored: None,
            prefix: PREFIX.into(),
            last: Arc::new(Mutex::new(counts.clone())),
            counts,
        }
    }

    /// Skips elements with this label, such as 255 for the borders of objects.
    #[must_use]
    pub fn ignore_label(self, label: i64) -> ConfusionMatrix {
        ConfusionMatrix { ignored: Some(label), ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> ConfusionMatrix {
        ConfusionMatrix { prefix: prefix.into(), ..self }
    }

    /// Returns the counts of the last finished pass. They stay shared with this inferencer, so take
    /// them before it is moved into a runner.
    pub fn counts(&self) -> Arc<Mutex<ConfusionCounts>> {
        self.last.clone()
    }
}

impl Inferencer for ConfusionMatrix {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let tensors = vec![tower.get_tensor(&self.prediction)?, tower.get_tensor(&self.label)?];
        match tensors.iter().find(|t| !t.dtype().is_int()) {
            Some(t) => Err(Error::dtype(format!("{} is {}, not an integer", t.name(), t.dtype()))),
            None => Ok(tensors),
        }
    }

    fn start(&mut self) {
        self.counts = ConfusionCounts::new(self.classes);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        if values[0].sizes() != values[1].sizes() {
            let (found, expected) = (values[0].sizes(), values[1].sizes());
            return Err(Error::shape(format!("predictions {found:?} for labels {expected:?}")));
        }
        for (prediction, label) in values[0].to_f64_vec().into_iter().zip(values[1].to_f64_vec()) {
            let (prediction, label) = (prediction as i64, label as i64);
            if self.ignored == Some(label) {
                continue;
            }
            let class = |what: &str, class: i64| {
                usize::try_from(class).map_err(|_| Error::argument(format!("the {what} {class} is negative")))
            };
            self.counts.add(class("label", label)?, class("prediction", prediction)?)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let counts = &self.counts;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = counts.clone();
        let values = [
            counts.accuracy(),
            counts.mean(ConfusionCounts::precision),
            counts.mean(ConfusionCounts::recall),
            counts.mean(ConfusionCounts::f1),
            counts.mean(ConfusionCounts::iou),
        ];
        self.names().into_iter().zip(values).collect()
    }

    fn names(&self) -> Vec<String> {
        ["accuracy", "macro_precision", "macro_recall", "macro_f1", "mean_iou"]
            .map(|what| prefixed(&self.prefix, what))
            .into()
    }
}
