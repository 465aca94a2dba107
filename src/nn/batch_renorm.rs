//! Batch renormalization (Ioffe, 2017).

use super::{Activation, BatchNorm};
use crate::graph::{Init, Tensor};
use crate::ops::Layout;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// Batch renormalization: like [`BatchNorm`], except that training corrects the normalized values
/// towards those that inference would compute.
///
/// With the statistics of the batch and the running ones, training computes
///
/// ```text
/// r = clip(deviation / running_deviation, 1 / rmax, rmax)
/// d = clip((mean - running_mean) / running_deviation, -dmax, dmax)
/// y = ((x - mean) / deviation * r + d) * gamma + beta
/// ```
///
/// and no gradient flows through `r` and `d`. Small batches, and batches that are not drawn
/// independently, then train as well as large ones. Start with an `rmax` of 1 and a `dmax` of 0, which
/// is batch normalization, or train with [`BatchNorm`] first: at the start, running statistics are far
/// from those of batches.
#[derive(Clone, Debug)]
pub struct BatchRenorm {
    norm: BatchNorm,
    rmax: f64,
    dmax: f64,
}

impl BatchRenorm {
    /// Creates a layer with these limits, momentum 0.99 and epsilon 1e-5.
    pub fn new(rmax: f64, dmax: f64) -> BatchRenorm {
        BatchRenorm { norm: BatchNorm::new().momentum(0.99).renorm(rmax, dmax), rmax, dmax }
    }

    /// Sets the decay of the running statistics (default: 0.99).
    #[must_use]
    #[doc(alias = "decay")]
    pub fn momentum(self, momentum: f64) -> BatchRenorm {
        BatchRenorm { norm: self.norm.momentum(momentum), ..self }
    }

    /// Sets epsilon (default: 1e-5).
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> BatchRenorm {
        BatchRenorm { norm: self.norm.epsilon(epsilon), ..self }
    }

    /// Omits the shift `beta`.
    #[must_use]
    pub fn no_center(self) -> BatchRenorm {
        BatchRenorm { norm: self.norm.no_center(), ..self }
    }

    /// Omits the scale `gamma`.
    #[must_use]
    pub fn no_scale(self) -> BatchRenorm {
        BatchRenorm { norm: self.norm.no_scale(), ..self }
    }

    /// Sets the initializer of `gamma` (default: ones).
    #[must_use]
    #[doc(alias = "gamma_initializer")]
    pub fn gamma(self, init: Init) -> BatchRenorm {
        BatchRenorm { norm: self.norm.gamma(init), ..self }
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> BatchRenorm {
        BatchRenorm { norm: self.norm.layout(layout), ..self }
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> BatchRenorm {
        BatchRenorm { norm: self.norm.activation(activation), ..self }
    }

    /// Applies the layer, creating (or sharing) the variables of [`BatchNorm::apply`].
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        // Also false for NaN.
        let valid = self.rmax >= 1.0 && self.dmax >= 0.0;
        if !valid && !x.is_poison() {
            let (rmax, dmax) = (self.rmax, self.dmax);
            let why = format!("rmax must be at least 1 and dmax at least 0, got {rmax} and {dmax}");
            return x.fail("BatchRenorm", Error::argument(why));
        }
        self.norm.build(t, name, x)
    }
}
