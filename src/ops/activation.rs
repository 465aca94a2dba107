//! Activation functions composed of other operations. Fusion turns each into one pass, and each can
//! be differentiated again.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;

impl Tensor {
    /// Clamps every element to `low..=high`. The gradient is 1 in the closed interval and 0
    /// outside.
    #[track_caller]
    #[doc(alias = "clip_by_value")]
    pub fn clip(&self, low: f64, high: f64) -> Tensor {
        composed(self, "Clip", Location::caller(), || {
            // Compare instead of taking a maximum, whose gradient at the edge would be shared with
            // the limit.
            let (low, high) = (self.constant_like(low), self.constant_like(high));
            let above = self.less(&low).select(&low, self);
            above.greater(&high).select(&high, &above)
        })
    }

    /// `min(max(x, 0), 6)`. The gradient is 0 at both edges.
    #[track_caller]
    pub fn relu6(&self) -> Tensor {
        composed(self, "Relu6", Location::caller(), || {
            let six = self.constant_like(6.0);
            self.greater_equal(&six).select(&six, &self.relu())
        })
    }

    /// `x` where positive, else `slope * x`. The gradient at 0 is `slope`.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        composed(self, "LeakyRelu", Location::caller(), || self.greater(0.0).select(self, &(self * slope)))
    }

    /// `x` where positive, else `exp(x) - 1` (Clevert et al., 2015). The gradient at 0 is 1.
    #[track_caller]
    pub fn elu(&self) -> Tensor {
        composed(self, "Elu", Location::caller(), || {
            let positive = self.greater(0.0);
            // Select before the exponential: an overflow in the branch that is not taken would give
            // a gradient of zero times infinity.
            let below = positive.select(&self.zero(), self).expm1();
            positive.select(self, &below)
        })
    }

    /// `x` times the standard normal distribution function of `x` (Hendrycks and Gimpel, 2016).
    /// This is the exact form, not the tanh approximation.
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        composed(self, "Gelu", Location::caller(), || {
            self * ((self * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
        })
    }

    /// Computes `log(1 + exp(x))` without overflow.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        composed(self, "Softplus", Location::caller(), || {
            // Both branches are smooth and all their derivatives agree at 0, so every derivative is
            // correct there. Those of max(x, 0) and |x| are not.
            let positive = self.greater(0.0);
            let tail = positive.select(&-self, self).exp().log1p();
            positive.select(self, &self.zero()) + tail
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        unary("Clip", Twice, Apart, |x| x.clip(-0.613, 0.717)),
        unary("Relu6", Twice, AwayFromZero, |x| (x * 3.7).relu6()),
        unary("LeakyRelu", Twice, AwayFromZero, |x| x.leaky_relu(0.2)),
        unary("Elu", Twice, AwayFromZero, Tensor::elu),
        unary("Gelu", Twice, Any, Tensor::gelu),
        unary("Softplus", Twice, Any, Tensor::softplus),
    ];
}
