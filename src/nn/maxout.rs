//! Maxout (Goodfellow et al., 2013).

use super::bias::channels;
use crate::graph::Tensor;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// Maxout: the maximum over each group of adjacent channels.
#[derive(Clone, Copy, Debug)]
pub struct Maxout {
    units: usize,
}

impl Maxout {
    /// Creates a layer that reduces every `units` adjacent channels to their maximum.
    pub fn new(units: usize) -> Maxout {
        Maxout { units }
    }

    /// Applies the layer to `[batch, ..., channels]`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |_| {
            if x.is_poison() {
                return x.clone();
            }
            let divides = |&c: &usize| self.units > 0 && c.is_multiple_of(self.units);
            if channels(x, 1..).filter(divides).is_none() {
                let why = format!("expected a multiple of {} channels, got {}", self.units, x.shape());
                return x.fail("Maxout", Error::shape(why));
            }
            x.split_dim(-1, &[-1, self.units as isize]).max_axes(&[-1])
        })
    }
}
