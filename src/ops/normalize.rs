//! Normalization to mean 0 and variance 1 over some axes, the basis of normalization layers.
//! Composed of `moments` and elementwise operations: fusion turns each into two passes, and each
//! can be differentiated again.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::Error;

impl Tensor {
    /// Returns `(x - mean) / sqrt(variance + epsilon)`, with mean and variance over `axes` (empty:
    /// all).
    #[track_caller]
    pub fn normalize(&self, axes: &[isize], epsilon: f64) -> Tensor {
        composed(self, "Normalize", Location::caller(), || {
            let (mean, variance) = self.moments(axes);
            (self - mean) * (variance + epsilon).rsqrt()
        })
    }

    /// Normalizes each example `[batch, ..., channels]` over groups of adjacent channels and all
    /// dims in between (Wu and He, 2018).
    #[track_caller]
    pub fn group_norm(&self, groups: usize, epsilon: f64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let channels = self.shape().last().and_then(|d| d.known()).filter(|_| self.rank() >= 2);
        let Some(each) = channels.filter(|&c| groups > 0 && c.is_multiple_of(groups)).map(|c| c / groups)
        else {
            let why = format!(
                "expected [batch, ..., channels] with a multiple of {groups} channels, got {}",
                self.shape()
            );
            return self.fail("GroupNorm", Error::shape(why));
        };
        composed(self, "GroupNorm", Location::caller(), || {
            let split = self.split_dim(-1, &[groups as isize, each as isize]);
            // Reduce all dims but batch and group.
            let last = self.rank() as isize;
            let axes: Vec<isize> = (1..last - 1).chain([last]).collect();
            split.normalize(&axes, epsilon).merge_dims(last - 1, 2)
        })
    }

    /// Normalizes each example `[batch, ...]` over all its elements (Ba et al., 2016).
    #[track_caller]
    pub fn layer_norm(&self, epsilon: f64) -> Tensor {
        self.normalize_from(1, "LayerNorm", "[batch, ...]", epsilon)
    }

    /// Normalizes each channel of each example `[batch, ..., channels]` separately (Ulyanov et al.,
    /// 2016).
    #[track_caller]
    pub fn instance_norm(&self, epsilon: f64) -> Tensor {
        self.normalize_from(2, "InstanceNorm", "[batch, ..., channels] of at least three dims", epsilon)
    }

    /// Normalizes over the axes from the second on, except the last `kept - 1`.
    #[track_caller]
    fn normalize_from(&self, kept: usize, name: &str, expected: &str, epsilon: f64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let axes: Vec<isize> = (1..=(self.rank() as isize - kept as isize)).collect();
        if axes.is_empty() {
            return self.fail(name, Error::shape(format!("expected {expected}, got {}", self.shape())));
        }
        composed(self, name, Location::caller(), || self.normalize(&axes, epsilon))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    /// A normalization of tensors with at least `rank` dims, the last a multiple of 3.
    fn norm(name: &'static str, rank: usize, op: fn(&Tensor) -> Tensor) -> Case {
        case(name, Twice, move |draw| {
            let rank = draw.between(rank, 4);
            let mut sizes: Vec<usize> = (0..rank).map(|_| draw.between(1, 4)).collect();
            sizes[rank - 1] = draw.pick(&[3, 6, 18]);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![op(&x[0])])
        })
    }

    cases![
        norm("Normalize", 1, |x| x.normalize(&[-1], 0.1)),
        norm("GroupNorm", 2, |x| x.group_norm(3, 0.1)),
        norm("LayerNorm", 2, |x| x.layer_norm(0.1)),
        norm("InstanceNorm", 3, |x| x.instance_norm(0.1)),
    ];
}
