//! Dropout (Srivastava et al., 2014).

use crate::graph::Tensor;
use crate::tower::TowerContext;

/// In training, every element zero with some probability and the others as much larger; in inference, nothing.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    rate: f64,
}

impl Dropout {
    /// Dropping with this probability: not the one of keeping.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate }
    }

    /// Applies the layer. What is dropped follows from the seed, the name and the run.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(
            name,
            x,
            |t| if t.is_training() && self.rate != 0.0 { x.dropout(self.rate) } else { x.clone() },
        )
    }
}
