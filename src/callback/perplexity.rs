//! Perplexity of a language model.

use super::Inferencer;
use super::inferencer::{PREFIX, prefixed};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The exponential of the mean negative log-likelihood of all tokens: `validation_perplexity`.
///
/// The mean is over the tokens of the whole pass, not over batches, so batches with different
/// numbers of tokens count by their tokens. NaN if there are none.
#[derive(Clone, Debug)]
pub struct Perplexity {
    loss: String,
    weight: Option<String>,
    prefix: String,
    sum: f64,
    tokens: f64,
}

impl Perplexity {
    /// Reads the losses with this name in the tower, in nats: one for each token, in any shape, or
    /// the mean of the batch as a scalar, which counts for the number of examples.
    pub fn new(loss: impl Into<String>) -> Perplexity {
        Perplexity { loss: loss.into(), weight: None, prefix: PREFIX.into(), sum: 0.0, tokens: 0.0 }
    }

    /// Sets the weights of the losses, a tensor of the same shape: a mask with 0 for padding, or for
    /// a scalar loss the number of tokens in the batch. A loss with weight 0 may be infinite or NaN.
    #[must_use]
    pub fn weighted_by(self, weight: impl Into<String>) -> Perplexity {
        Perplexity { weight: Some(weight.into()), ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistic.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Perplexity {
        Perplexity { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for Perplexity {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        [Some(&self.loss), self.weight.as_ref()]
            .into_iter()
            .flatten()
            .map(|name| tower.get_tensor(name))
            .collect()
    }

    fn start(&mut self) {
        (self.sum, self.tokens) = (0.0, 0.0);
    }

    fn batch(&mut self, values: &[HostTensor], examples: usize) -> Result<()> {
        let weights = match values.get(1) {
            Some(weights) if weights.sizes() != values[0].sizes() => {
                let (found, expected) = (weights.sizes(), values[0].sizes());
                return Err(Error::shape(format!("weights {found:?} for losses {expected:?}")));
            }
            Some(weights) => weights.to_f64_vec(),
            None if values[0].sizes().is_empty() => vec![examples as f64],
            None => vec![1.0; values[0].len()],
        };
        for (loss, weight) in values[0].to_f64_vec().into_iter().zip(weights) {
            if weight != 0.0 {
                self.sum += loss * weight;
                self.tokens += weight;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let perplexity = (self.sum / self.tokens).exp();
        self.names().into_iter().map(|name| (name, perplexity)).collect()
    }

    fn names(&self) -> Vec<String> {
        vec![prefixed(&self.prefix, "perplexity")]
    }
}
