//! Maxout (Goodfellow et al., 2013).

use super::bias::channels;
use crate::graph::Tensor;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// The largest of every few neighbouring channels.
#[derive(Clone, Copy, Debug)]
pub struct Maxout {
    units: usize,
}

impl Maxout {
    /// Of every `units` channels one is left.
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
                let why = format!("takes channels that {} divides, not {}", self.units, x.shape());
                return x.fail("Maxout", Error::shape(why));
            }
            x.split_dim(-1, &[-1, self.units as isize]).max_axes(&[-1])
        })
    }
}
