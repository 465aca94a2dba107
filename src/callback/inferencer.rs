//! Statistics of inference results.

use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Computes statistics from the results of an inference pass.
///
/// The statistics of all inferencers here are called `PREFIX_NAME`, or `NAME` if the prefix is
/// empty. The prefix defaults to `validation`.
pub trait Inferencer {
    /// Returns the tensors to fetch for every batch. Called once per inference tower.
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>>;

    /// Called before a pass.
    fn start(&mut self);

    /// Receives the fetched values of a batch with this many examples.
    fn batch(&mut self, values: &[HostTensor], examples: usize) -> Result<()>;

    /// Called after a pass. Returns the statistics.
    fn finish(&mut self) -> Vec<(String, f64)>;

    /// Returns the names of the statistics.
    fn names(&self) -> Vec<String>;
}

/// The default prefix of statistics.
pub(super) const PREFIX: &str = "validation";

/// Returns the name of a statistic with its prefix.
pub(super) fn prefixed(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.into() } else { format!("{prefix}_{name}") }
}

/// Returns which elements of the tensor `name` are ones. Any other value but zero is an error: a
/// probability or a label of -1 would count as a one.
pub(super) fn zeros_and_ones(tensor: &HostTensor, name: &str) -> Result<Vec<bool>> {
    let values = tensor.to_f64_vec();
    match values.iter().position(|v| *v != 0.0 && *v != 1.0) {
        Some(i) => Err(Error::argument(format!("element {i} of {name} is {}, not 0 or 1", values[i]))),
        None => Ok(values.into_iter().map(|v| v == 1.0).collect()),
    }
}

/// The mean of scalars over all examples. Batches are weighted by size, so a smaller last batch is
/// handled correctly.
#[derive(Clone, Debug)]
pub struct ScalarStats {
    names: Vec<String>,
    weight: Option<String>,
    prefix: String,
    sums: Vec<f64>,
    /// The sum of the weights.
    total: f64,
}

impl ScalarStats {
    /// Averages the scalar `name` of the tower. The statistic is called `validation_NAME`, where
    /// `NAME` is the last part of the name.
    pub fn new(name: impl Into<String>) -> ScalarStats {
        ScalarStats::from_names([name.into()])
    }

    /// Averages several scalars.
    #[doc(alias = "of")]
    pub fn from_names<S: Into<String>>(names: impl IntoIterator<Item = S>) -> ScalarStats {
        let names = names.into_iter().map(Into::into).collect();
        ScalarStats { names, weight: None, prefix: PREFIX.into(), sums: Vec::new(), total: 0.0 }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> ScalarStats {
        ScalarStats { prefix: prefix.into(), ..self }
    }

    /// Weights each batch by the scalar `weight` of the tower instead of its number of examples: for
    /// means over tokens, of which batches have different numbers. NaN if all weights are 0.
    #[must_use]
    pub fn weighted_by(self, weight: impl Into<String>) -> ScalarStats {
        ScalarStats { weight: Some(weight.into()), ..self }
    }
}

impl Inferencer for ScalarStats {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let scalar = |name: &String| {
            let tensor = tower.get_tensor(name)?;
            match tensor.rank() {
                0 => Ok(tensor),
                _ => Err(Error::shape(format!("{name} is {}, not a scalar", tensor.shape()))),
            }
        };
        self.names.iter().chain(&self.weight).map(scalar).collect()
    }

    fn start(&mut self) {
        self.sums = vec![0.0; self.names.len()];
        self.total = 0.0;
    }

    fn batch(&mut self, values: &[HostTensor], examples: usize) -> Result<()> {
        let weight = match &self.weight {
            Some(name) => values[self.names.len()].to_scalar().map_err(|e| e.within(name))?,
            None => examples as f64,
        };
        self.total += weight;
        for (sum, value) in self.sums.iter_mut().zip(values) {
            // The mean of no tokens may be NaN.
            *sum += if weight == 0.0 { 0.0 } else { value.to_scalar()? * weight };
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        self.names().into_iter().zip(&self.sums).map(|(name, sum)| (name, sum / self.total)).collect()
    }

    fn names(&self) -> Vec<String> {
        let last = |name: &String| name.rsplit('/').next().unwrap_or(name).to_string();
        self.names.iter().map(|name| prefixed(&self.prefix, &last(name))).collect()
    }
}

/// The fraction of misclassified examples, from a vector with a 0 (correct) or 1 (wrong) per
/// example.
#[derive(Clone, Debug)]
pub struct ClassificationError {
    tensor: String,
    prefix: String,
    name: String,
    wrong: f64,
    examples: f64,
}

impl ClassificationError {
    /// Reads the vector `tensor` of the tower. The statistic is called `validation_error`.
    pub fn new(tensor: impl Into<String>) -> ClassificationError {
        let (prefix, name) = (PREFIX.into(), "error".into());
        ClassificationError { tensor: tensor.into(), prefix, name, wrong: 0.0, examples: 0.0 }
    }

    /// Sets the [prefix](Inferencer) of the statistic.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> ClassificationError {
        ClassificationError { prefix: prefix.into(), ..self }
    }

    /// Sets the name after the prefix. Defaults to `error`.
    #[must_use]
    #[doc(alias = "summary_name")]
    pub fn name(self, name: impl Into<String>) -> ClassificationError {
        ClassificationError { name: name.into(), ..self }
    }
}

impl Default for ClassificationError {
    /// Reads `incorrect_vector`. The statistic is called `validation_error`.
    fn default() -> ClassificationError {
        ClassificationError::new("incorrect_vector")
    }
}

impl Inferencer for ClassificationError {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let tensor = tower.get_tensor(&self.tensor)?;
        match tensor.rank() {
            1 => Ok(vec![tensor]),
            _ => Err(Error::shape(format!("{} is {}, not a vector", self.tensor, tensor.shape()))),
        }
    }

    fn start(&mut self) {
        (self.wrong, self.examples) = (0.0, 0.0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let wrong = zeros_and_ones(&values[0], &self.tensor)?;
        self.wrong += wrong.iter().filter(|wrong| **wrong).count() as f64;
        self.examples += wrong.len() as f64;
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let share = if self.examples > 0.0 { self.wrong / self.examples } else { 0.0 };
        vec![(prefixed(&self.prefix, &self.name), share)]
    }

    fn names(&self) -> Vec<String> {
        vec![prefixed(&self.prefix, &self.name)]
    }
}

/// Precision, recall and F1 score of binary predictions: `validation_precision`, `validation_recall`
/// and `validation_f1`, 0 where undefined.
#[derive(Clone, Debug)]
pub struct BinaryClassificationStats {
    prediction: String,
    label: String,
    prefix: String,
    positive: f64,
    predicted: f64,
    both: f64,
}

impl BinaryClassificationStats {
    /// Reads the predictions and labels with these names in the tower, both zeros and ones.
    pub fn new(prediction: impl Into<String>, label: impl Into<String>) -> BinaryClassificationStats {
        let (prediction, label) = (prediction.into(), label.into());
        BinaryClassificationStats {
            prediction,
            label,
            prefix: PREFIX.into(),
            positive: 0.0,
            predicted: 0.0,
            both: 0.0,
        }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> BinaryClassificationStats {
        BinaryClassificationStats { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for BinaryClassificationStats {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![tower.get_tensor(&self.prediction)?, tower.get_tensor(&self.label)?])
    }

    fn start(&mut self) {
        (self.positive, self.predicted, self.both) = (0.0, 0.0, 0.0);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        let predicted = zeros_and_ones(&values[0], &self.prediction)?;
        let label = zeros_and_ones(&values[1], &self.label)?;
        if predicted.len() != label.len() {
            let why = format!("{} predictions and {} labels", predicted.len(), label.len());
            return Err(Error::shape(why));
        }
        for (p, l) in predicted.into_iter().zip(label) {
            let [p, l] = [p, l].map(|is_one| f64::from(u8::from(is_one)));
            self.predicted += p;
            self.positive += l;
            self.both += p * l;
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let share = |of: f64| if of > 0.0 { self.both / of } else { 0.0 };
        // F1, the harmonic mean of precision and recall, is the shared part of their average total.
        let mean = (self.predicted + self.positive) / 2.0;
        let values = [share(self.predicted), share(self.positive), share(mean)];
        self.names().into_iter().zip(values).collect()
    }

    fn names(&self) -> Vec<String> {
        ["precision", "recall", "f1"].map(|what| prefixed(&self.prefix, what)).into()
    }
}
