//! Multi-head attention (Vaswani et al., 2017).

use super::bias::channels;
use super::{Dropout, Linear};
use crate::graph::{Init, Tensor};
use crate::tower::TowerContext;
use tensorpack_tensor::{DType, Error};

/// The score of a masked position: finite, yet so low that its softmax weight is zero.
const MASKED_SCORE: f64 = -1e30;

/// Multi-head scaled dot-product attention: `softmax(q k^T / sqrt(d)) v` for each head, then the
/// concatenated heads through a linear layer.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    causal: bool,
    dropout: f64,
    bias: bool,
    init: Init,
}

impl MultiHeadAttention {
    /// Creates a layer with this many heads, which must divide the number of features.
    pub fn new(heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { heads, causal: false, dropout: 0.0, bias: true, init: Init::xavier() }
    }

    /// Applies a causal mask: each position attends only to itself and earlier positions.
    #[must_use]
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// Sets the dropout rate of the attention weights in training (default: 0).
    #[must_use]
    pub fn dropout(self, rate: f64) -> MultiHeadAttention {
        MultiHeadAttention { dropout: rate, ..self }
    }

    /// Omits the biases of the linear layers.
    #[must_use]
    pub fn no_bias(self) -> MultiHeadAttention {
        MultiHeadAttention { bias: false, ..self }
    }

    /// Sets the initializer of the weights (default: [`Init::xavier`]).
    #[must_use]
    pub fn init(self, init: Init) -> MultiHeadAttention {
        MultiHeadAttention { init, ..self }
    }

    /// Applies self-attention to `x [batch, time, features]`, creating (or sharing) `W` and `b` of
    /// `name/query`, `name/value` and `name/out`, and `name/key/W`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.apply_to(t, name, x, x)
    }

    /// Applies cross-attention: queries come from `x [batch, time, features]`, keys and values from
    /// `memory`, a sequence with its own length and number of features.
    #[track_caller]
    pub fn apply_to(&self, t: &TowerContext, name: &str, x: &Tensor, memory: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() || memory.is_poison() {
                return Tensor::poison(x.graph());
            }
            let divides = |&f: &usize| self.heads > 0 && f.is_multiple_of(self.heads);
            let Some(features) = channels(x, 3..=3).filter(divides) else {
                let why = format!(
                    "expected [batch, time, features] with known features that {} heads divide, got {}",
                    self.heads,
                    x.shape()
                );
                return x.fail("MultiHeadAttention", Error::shape(why));
            };
            let linear = Linear::new(features).last_axis().init(self.init.clone());
            let linear = if self.bias { linear } else { linear.no_bias() };
            // Reshapes [batch, time, features] to [batch, head, time, features of a head].
            let heads = |linear: &Linear, name: &str, x: &Tensor| {
                let x = linear.apply(t, name, x);
                x.split_dim(2, &[self.heads as isize, -1]).transpose(&[0, 2, 1, 3])
            };
            let query = heads(&linear, "query", x);
            // A key bias would add the same value to all scores of a query; the softmax cancels it.
            let key = heads(&linear.clone().no_bias(), "key", memory);
            let value = heads(&linear, "value", memory);
            let scale = 1.0 / ((features / self.heads) as f64).sqrt();
            let mut scores = (query * scale).matmul(&key.matrix_transpose());
            if self.causal {
                scores = causal_mask(&scores);
            }
            let weights = match self.dropout {
                0.0 => scores.softmax(),
                rate => Dropout::new(rate).apply(t, "dropout", &scores.softmax()),
            };
            let attended = weights.matmul(&value).transpose(&[0, 2, 1, 3]).merge_dims(2, 2);
            linear.apply(t, "out", &attended)
        })
    }
}

/// Masks the scores `[..., query, key]` of keys that come after the query.
#[track_caller]
fn causal_mask(scores: &Tensor) -> Tensor {
    let [query, key] = [-2, -1].map(|axis| scores.iota_like(axis, DType::I32));
    key.less_equal(&query).select(scores, &scores.constant_like(MASKED_SCORE))
}
