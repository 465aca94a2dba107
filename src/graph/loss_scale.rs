//! The settings of dynamic loss scaling.

use super::Graph;
use tensorpack_tensor::{Error, Result};

/// Dynamic loss scaling, for [`Precision::F16`](super::Precision::F16): gradients are computed from
/// the cost times a scale, so that small ones do not underflow in f16, and divided by it again.
///
/// The scale is a variable. It doubles after a number of good steps. A step that overflows is
/// skipped: it halves the scale, counts itself and changes nothing else. An overflow at the smallest
/// scale is an error.
///
/// ```
/// use tensorpack::prelude::*;
///
/// let graph = Graph::new();
/// graph.set_precision(Precision::F16);
/// graph.set_loss_scale(LossScale::new().initial(1024.0).growth_steps(500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "GradScaler")]
#[doc(alias = "DynamicLossScale")]
pub struct LossScale {
    pub(crate) initial: f64,
    pub(crate) growth_steps: u64,
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { initial: 65536.0, growth_steps: 2000, smallest: 1.0, largest: 16_777_216.0 }
    }
}

impl LossScale {
    /// Returns the default settings.
    pub fn new() -> LossScale {
        LossScale::default()
    }

    /// Sets the first scale. Defaults to 2^16.
    #[must_use]
    pub fn initial(self, initial: f64) -> LossScale {
        LossScale { initial, ..self }
    }

    /// Sets the number of good steps in a row after which the scale doubles. Defaults to 2000.
    #[must_use]
    #[doc(alias = "growth_interval")]
    pub fn growth_steps(self, growth_steps: u64) -> LossScale {
        LossScale { growth_steps, ..self }
    }

    /// Sets the smallest scale. Defaults to 1.
    #[must_use]
    pub fn smallest(self, smallest: f64) -> LossScale {
        LossScale { smallest, ..self }
    }

    /// Sets the largest scale. Defaults to 2^24.
    #[must_use]
    pub fn largest(self, largest: f64) -> LossScale {
        LossScale { largest, ..self }
    }

    /// Checks the settings.
    pub(crate) fn check(self) -> Result<()> {
        let LossScale { initial, growth_steps, smallest, largest } = self;
        // Other scales would round gradients. f32 holds these, and their inverses.
        let is_power = |x: f64| x > 0.0 && x.log2().fract() == 0.0 && x.log2().abs() <= 100.0;
        if let Some(other) = [initial, smallest, largest].into_iter().find(|x| !is_power(*x)) {
            return Err(Error::argument(format!("a loss scale of {other}: scales are powers of two")));
        }
        if !(smallest <= initial && initial <= largest) {
            let why = format!("the initial loss scale {initial} is not between {smallest} and {largest}");
            return Err(Error::argument(why));
        }
        match growth_steps {
            0 => Err(Error::argument("the loss scale cannot double after 0 good steps")),
            _ => Ok(()),
        }
    }
}

impl Graph {
    /// Sets how the cost is scaled where the precision is f16. Settings that are not valid are an
    /// error when gradients are computed.
    pub fn set_loss_scale(&self, loss_scale: LossScale) {
        if let Some(mut b) = self.building() {
            b.loss_scale = loss_scale;
        }
    }

    /// Returns how the cost is scaled where the precision is f16.
    pub(crate) fn loss_scale(&self) -> LossScale {
        self.built().map_or_else(LossScale::default, |b| b.loss_scale)
    }
}
