//! Vectors for words.

use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::DType;

/// A vector for each of so many words, or other things that have numbers: the rows of `W [words, features]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    words: usize,
    features: usize,
    dtype: DType,
    init: Init,
}

impl Embedding {
    /// For this many words, drawn between -0.05 and 0.05.
    pub fn new(words: usize, features: usize) -> Embedding {
        Embedding { words, features, dtype: DType::F32, init: Init::Uniform(-0.05, 0.05) }
    }

    /// With vectors of this type instead of f32.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Embedding {
        Embedding { dtype, ..self }
    }

    /// With vectors drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Embedding {
        Embedding { init, ..self }
    }

    /// The vectors of integer `ids` of any shape, in a last dim that comes with them, making (or sharing) `name/W`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, ids: &Tensor) -> Tensor {
        t.layer(name, ids, |t| {
            let spec = VariableSpec::new("W", [self.words, self.features]).dtype(self.dtype);
            t.variable(spec.init(self.init.clone())).gather(ids, 0)
        })
    }
}
