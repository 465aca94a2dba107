//! Multi-head attention (Vaswani et al., 2017).

use super::bias::channels;
use super::{KvCache, Linear};
use crate::graph::{Init, Tensor, TensorSpec};
use crate::ops::AttentionOptions;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// Multi-head scaled dot-product attention: [`Tensor::attention`] of linear projections for each
/// head, then the concatenated heads through a linear layer. The CPU engine does not store the
/// attention weights, so memory grows linearly with the length of the sequence.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    kv_heads: Option<usize>,
    rotary: Option<f64>,
    causal: bool,
    dropout: f64,
    bias: bool,
    init: Init,
}

impl MultiHeadAttention {
    /// Creates a layer with this many heads, which must divide the number of features.
    pub fn new(heads: usize) -> MultiHeadAttention {
        MultiHeadAttention {
            heads,
            kv_heads: None,
            rotary: None,
            causal: false,
            dropout: 0.0,
            bias: true,
            init: Init::xavier(),
        }
    }

    /// Sets the number of key and value heads (default: as many as query heads), which must divide
    /// the number of query heads: grouped-query attention (Ainslie et al., 2023).
    #[must_use]
    pub fn kv_heads(self, kv_heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { kv_heads: Some(kv_heads), ..self }
    }

    /// Applies a rotary position embedding with this base (usually 10,000) to queries and keys; see
    /// [`Tensor::rotary_embedding`]. The features of a head must be even.
    #[must_use]
    #[doc(alias = "rope")]
    pub fn rotary(self, base: f64) -> MultiHeadAttention {
        MultiHeadAttention { rotary: Some(base), ..self }
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
        self.apply_with(t, name, x, memory, &AttentionOptions::default())
    }

    /// Like [`MultiHeadAttention::apply_to`], with a padding mask, a bias or another scale:
    /// `AttentionOptions::default().lengths(&lengths)` ignores the padding at the end of each
    /// sequence of `memory`. A causal mask and dropout of the layer apply as well.
    #[track_caller]
    pub fn apply_with(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        memory: &Tensor,
        options: &AttentionOptions,
    ) -> Tensor {
        t.layer(name, x, |t| {
            let Some(Projected { query, key, value }) = self.project(t, x, memory) else {
                return Tensor::poison(x.graph());
            };
            let [query, key] = match self.rotary {
                Some(base) => [query, key].map(|x| x.rotary_embedding(base)),
                None => [query, key],
            };
            let options = if self.causal { options.clone().causal() } else { options.clone() };
            self.attend(t, &query, &key, &value, options)
        })
    }

    /// Decodes one position: self-attention of `x [batch, 1, features]` to itself and to the positions
    /// in `cache`. Shares the variables of [`MultiHeadAttention::apply`] with a causal mask, which
    /// computes the same for all positions at once. Returns the result, and the cache with this
    /// position added.
    ///
    /// `position`, an integer tensor `[batch]`, is the number of positions in the cache of each
    /// example. A position outside of the cache's capacity ends the run with an error. The work is the
    /// same for every position.
    #[track_caller]
    #[doc(alias = "decode")]
    pub fn apply_cached(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        cache: &KvCache,
        position: &Tensor,
    ) -> (Tensor, KvCache) {
        let mut next = cache.clone();
        let y = t.layer(name, x, |t| {
            if x.rank() == 3 && x.shape()[1] != 1.into() {
                let why = format!("expected one position [batch, 1, features], got {}", x.shape());
                return x.fail("MultiHeadAttention", Error::shape(why));
            }
            let Some(Projected { query, key, value }) = self.project(t, x, x) else {
                return Tensor::poison(x.graph());
            };
            let [query, key] = match self.rotary {
                Some(base) => [query, key].map(|x| x.rotary_embedding_at(base, &position.expand_dims(1))),
                None => [query, key],
            };
            next = cache.with_position(&key, &value, position);
            let options = AttentionOptions::default().lengths(&(position + 1.0));
            self.attend(t, &query, next.key(), next.value(), options)
        });
        (y, next)
    }

    /// Returns the inputs of a cache of `capacity` positions, `name/key` and `name/value`, for this layer
    /// applied to this many features.
    pub fn cache_specs(&self, name: &str, features: usize, capacity: usize) -> [TensorSpec; 2] {
        let (heads, width) = (self.kv_heads.unwrap_or(self.heads), features / self.heads.max(1));
        ["key", "value"].map(|part| {
            TensorSpec::f32(format!("{name}/{part}"), [None, Some(capacity), Some(heads), Some(width)])
        })
    }

    /// Projects `x` to queries and `memory` to keys and values, `[batch, time, heads, features of a
    /// head]`. Returns `None` after an error.
    fn project(&self, t: &TowerContext, x: &Tensor, memory: &Tensor) -> Option<Projected> {
        if x.is_poison() || memory.is_poison() {
            return None;
        }
        let kv_heads = self.kv_heads.unwrap_or(self.heads);
        let divides = |&f: &usize| self.heads > 0 && f.is_multiple_of(self.heads);
        let Some(features) = channels(x, 3..=3).filter(divides) else {
            let why = format!(
                "expected [batch, time, features] with known features that {} heads divide, got {}",
                self.heads,
                x.shape()
            );
            x.fail("MultiHeadAttention", Error::shape(why));
            return None;
        };
        if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) {
            let why = format!("{kv_heads} key heads do not divide {} query heads", self.heads);
            x.fail("MultiHeadAttention", Error::argument(why));
            return None;
        }
        let width = features / self.heads;
        // Reshapes [batch, time, features] to [batch, time, head, features of a head].
        let split = |x: &Tensor, heads: usize| x.split_dim(2, &[heads as isize, width as isize]);
        // A key bias would add the same value to all scores of a query; the softmax cancels it.
        let key = self.linear(kv_heads * width).no_bias();
        Some(Projected {
            query: split(&self.linear(features).build(t, "query", x), self.heads),
            key: split(&key.build(t, "key", memory), kv_heads),
            value: split(&self.linear(kv_heads * width).build(t, "value", memory), kv_heads),
        })
    }

    /// Attends, and projects the concatenated heads.
    fn attend(
        &self,
        t: &TowerContext,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions,
    ) -> Tensor {
        let options = match self.dropout {
            rate if rate != 0.0 && t.is_training() => options.dropout(rate),
            _ => options,
        };
        let heads = query.attention(key, value, &options).merge_dims(2, 2);
        match channels(&heads, 3..=3) {
            Some(features) => self.linear(features).build(t, "out", &heads),
            None => heads,
        }
    }

    fn linear(&self, features: usize) -> Linear {
        let linear = Linear::new(features).last_axis().init(self.init.clone());
        if self.bias { linear } else { linear.no_bias() }
    }
}

/// Queries, keys and values of all heads.
struct Projected {
    query: Tensor,
    key: Tensor,
    value: Tensor,
}
