//! Nonlinearities made of other operations. Fusion makes one pass of each, and each can be differentiated again.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;

impl Tensor {
    /// Every element limited to between `low` and `high`.
    #[track_caller]
    #[doc(alias = "clip_by_value")]
    pub fn clip(&self, low: f64, high: f64) -> Tensor {
        composed(self, "Clip", Location::caller(), || {
            self.maximum(&self.constant_like(low)).minimum(&self.constant_like(high))
        })
    }

    /// `min(max(x, 0), 6)`.
    #[track_caller]
    pub fn relu6(&self) -> Tensor {
        composed(self, "Relu6", Location::caller(), || self.relu().minimum(&self.constant_like(6.0)))
    }

    /// `x` where positive, else `slope * x`.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        composed(self, "LeakyRelu", Location::caller(), || {
            self.greater(&self.zero()).select(self, &(self * slope))
        })
    }

    /// `x` where positive, else `exp(x) - 1` (Clevert et al., 2015).
    #[track_caller]
    pub fn elu(&self) -> Tensor {
        composed(self, "Elu", Location::caller(), || {
            // The exponential of what is not taken must not overflow: its gradient would be zero times infinity.
            let below = self.minimum(&self.zero()).exp() - 1.0;
            self.greater(&self.zero()).select(self, &below)
        })
    }

    /// `x` times the standard normal distribution function of `x` (Hendrycks and Gimpel, 2016), exactly.
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        composed(self, "Gelu", Location::caller(), || {
            self * ((self * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
        })
    }

    /// `log(1 + exp(x))`, without overflow.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        composed(self, "Softplus", Location::caller(), || {
            self.maximum(&self.zero()) + (-self.abs()).exp().log1p()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        unary("Clip", Twice, Apart, |x| x.clip(-0.613, 0.717)),
        unary("Relu6", Twice, AwayFromZero, |x| (x * 3.7).relu6()),
        unary("LeakyRelu", Twice, AwayFromZero, |x| x.leaky_relu(0.2)),
        unary("Elu", Twice, AwayFromZero, Tensor::elu),
        unary("Gelu", Twice, Any, Tensor::gelu),
        unary("Softplus", Twice, AwayFromZero, Tensor::softplus),
    ];
}
