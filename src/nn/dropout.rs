//! Dropout (Srivastava et al., 2014).

use crate::graph::Tensor;
use crate::tower::TowerContext;

/// Dropout: in training, sets elements to zero at random and scales the others by `1 / (1 - rate)`.
/// In inference it returns its input.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    rate: f64,
}

impl Dropout {
    /// Creates a layer that drops each element with probability `rate`.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate }
    }

    /// Applies the layer. The seed, the name and the run determine which elements are dropped.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(
            name,
            x,
            |t| if t.is_training() && self.rate != 0.0 { x.dropout(self.rate) } else { x.clone() },
        )
    }
}
