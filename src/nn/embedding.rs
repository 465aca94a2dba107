//! The embedding layer.

use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::DType;

/// A trainable lookup table with one vector per word (or other integer id): the rows of
/// `W [words, features]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    words: usize,
    features: usize,
    dtype: DType,
    init: Init,
}

impl Embedding {
    /// Creates a table of `words` vectors, initialized uniformly in -0.05..0.05.
    pub fn new(words: usize, features: usize) -> Embedding {
        Embedding { words, features, dtype: DType::F32, init: Init::Uniform(-0.05, 0.05) }
    }

    /// Sets the data type of the vectors (default: f32).
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Embedding {
        Embedding { dtype, ..self }
    }

    /// Sets the initializer of the vectors.
    #[must_use]
    pub fn init(self, init: Init) -> Embedding {
        Embedding { init, ..self }
    }

    /// Looks up integer `ids` of any shape, creating (or sharing) `name/W`. The result has the
    /// shape of `ids` followed by a dimension of `features` elements.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, ids: &Tensor) -> Tensor {
        t.layer(name, ids, |t| {
            let spec = VariableSpec::new("W", [self.words, self.features]).dtype(self.dtype);
            t.variable(spec.init(self.init.clone())).gather(ids, 0)
        })
    }
}
