//! Attention with several heads (Vaswani et al., 2017).

use super::bias::channels;
use super::{Dropout, Linear};
use crate::graph::{Init, Tensor};
use crate::tower::TowerContext;
use tensorpack_tensor::{DType, Error};

/// Far enough below any score for its exponential to be zero, and far enough from infinity to be computed with.
const NEVER: f64 = -1e30;

/// Each position asks all positions, in several ways at a time, and takes the average of their answers by how well they
/// match: `softmax(q k^T / sqrt(d)) v` for each head, the heads side by side, and a last linear layer.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    causal: bool,
    dropout: f64,
    bias: bool,
    init: Init,
}

impl MultiHeadAttention {
    /// With this many heads, which must divide the features.
    pub fn new(heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { heads, causal: false, dropout: 0.0, bias: true, init: Init::xavier() }
    }

    /// With each position asking only itself and those before it.
    #[must_use]
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// With weights dropped at this rate in training, after the softmax.
    #[must_use]
    pub fn dropout(self, rate: f64) -> MultiHeadAttention {
        MultiHeadAttention { dropout: rate, ..self }
    }

    /// With linear layers that have no bias.
    #[must_use]
    pub fn no_bias(self) -> MultiHeadAttention {
        MultiHeadAttention { bias: false, ..self }
    }

    /// With weights drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> MultiHeadAttention {
        MultiHeadAttention { init, ..self }
    }

    /// Applies the layer to `[batch, time, features]`, which asks itself, making (or sharing) `W` and `b` of
    /// `name/query`, `name/value` and `name/out`, and `name/key/W`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.apply_to(t, name, x, x)
    }

    /// Applies the layer to `[batch, time, features]`, which asks `memory`: `[batch, its time, its features]`.
    #[track_caller]
    pub fn apply_to(&self, t: &TowerContext, name: &str, x: &Tensor, memory: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() || memory.is_poison() {
                return Tensor::poison(x.graph());
            }
            let divides = |&f: &usize| self.heads > 0 && f.is_multiple_of(self.heads);
            let Some(features) = channels(x, 3..=3).filter(divides) else {
                let why = format!(
                    "takes [batch, time, features] with known features that {} heads divide, not {}",
                    self.heads,
                    x.shape()
                );
                return x.fail("MultiHeadAttention", Error::shape(why));
            };
            let linear = Linear::new(features).last_axis().init(self.init.clone());
            let linear = if self.bias { linear } else { linear.no_bias() };
            // [batch, time, features] as [batch, head, time, features of a head].
            let heads = |linear: &Linear, name: &str, x: &Tensor| {
                let x = linear.apply(t, name, x);
                x.split_dim(2, &[self.heads as isize, -1]).transpose(&[0, 2, 1, 3])
            };
            let query = heads(&linear, "query", x);
            // A bias of the keys would add the same to all scores of a query, which the softmax takes out again.
            let key = heads(&linear.clone().no_bias(), "key", memory);
            let value = heads(&linear, "value", memory);
            let scale = 1.0 / ((features / self.heads) as f64).sqrt();
            let mut scores = (query * scale).matmul(&key.matrix_transpose());
            if self.causal {
                scores = causal(&scores);
            }
            let weights = match self.dropout {
                0.0 => scores.softmax(),
                rate => Dropout::new(rate).apply(t, "dropout", &scores.softmax()),
            };
            let answers = weights.matmul(&value).transpose(&[0, 2, 1, 3]).merge_dims(2, 2);
            linear.apply(t, "out", &answers)
        })
    }
}

/// Scores `[..., time, time]` with what comes later out of reach.
#[track_caller]
fn causal(scores: &Tensor) -> Tensor {
    let [asking, asked] = [-2, -1].map(|axis| scores.iota_like(axis, DType::I32));
    asked.less_equal(&asking).select(scores, &scores.constant_like(NEVER))
}
