//! The keys and values that a decoder keeps between positions.

use crate::graph::Tensor;
use tensorpack_tensor::{DType, Error};

/// The keys and values of the positions that an attention layer has seen, `[batch, capacity, heads,
/// features of a head]`. A decoder takes it as input and returns the next one: see
/// [`MultiHeadAttention::apply_cached`](super::MultiHeadAttention::apply_cached). It starts as zeros.
///
/// ```
/// use tensorpack::prelude::*;
///
/// # fn main() -> Result<()> {
/// let layer = MultiHeadAttention::new(2).causal();
/// let graph = Graph::new();
/// let [key, value] = layer.cache_specs("cache", 8, 100).map(|spec| graph.placeholder(&spec));
/// let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(1), Some(8)]));
/// let position = graph.placeholder(&TensorSpec::i32("position", [None]));
/// let cache = KvCache::new(&key, &value);
/// let t = TowerContext::inference(&graph);
/// let (y, next) = t.build(|t| layer.apply_cached(t, "attention", &x, &cache, &position));
/// assert_eq!((y.shape(), next.key().shape()[1]), (x.shape(), 100.into()));
/// # graph.freeze().map(|_| ())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    key: Tensor,
    value: Tensor,
}

impl KvCache {
    /// Creates a cache from its two tensors.
    pub fn new(key: &Tensor, value: &Tensor) -> KvCache {
        KvCache { key: key.clone(), value: value.clone() }
    }

    /// Returns the keys.
    pub fn key(&self) -> &Tensor {
        &self.key
    }

    /// Returns the values.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Returns the cache with the key and value `[batch, 1, heads, features]` of a position stored.
    #[track_caller]
    pub(super) fn with_position(&self, key: &Tensor, value: &Tensor, position: &Tensor) -> KvCache {
        let failed = |e: Error| {
            let poison = self.key.fail("KvCache", e);
            KvCache { key: poison.clone(), value: poison }
        };
        if self.key.is_poison() || self.value.is_poison() || position.is_poison() {
            let poison = Tensor::poison(self.key.graph());
            return KvCache { key: poison.clone(), value: poison };
        }
        if position.rank() != 1 || !position.dtype().is_int() {
            let why =
                format!("expected integer positions [batch], got {}{}", position.dtype(), position.shape());
            return failed(Error::shape(why));
        }
        let capacity = |x: &Tensor| if x.rank() == 4 { x.shape()[1].known() } else { None };
        let Some(length) = capacity(&self.key).filter(|n| capacity(&self.value) == Some(*n)) else {
            let why = format!(
                "expected keys and values [batch, capacity, heads, features] of one known capacity, got {} and {}",
                self.key.shape(),
                self.value.shape()
            );
            return failed(Error::shape(why));
        };
        // Gathering ends the run with an error if a position is outside of the cache.
        let slot = self.key.graph().iota(length, DType::I64).gather(position, 0);
        let slot = slot.split_dim(0, &[-1, 1, 1, 1]);
        let store = |cache: &Tensor, new: &Tensor| {
            cache.iota_like(1, DType::I64).equal(&slot).select(&new.cast(cache.dtype()), cache)
        };
        KvCache { key: store(&self.key, key), value: store(&self.value, value) }
    }
}
