//! Losses, one for each element or example; the cost is usually their mean. Inputs of bf16
//! and f16 are compared in f32, because a mean of many losses needs more than their digits.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::Error;

/// Converts bf16 and f16 to f32, in which losses are computed; other types are unchanged.
#[track_caller]
pub(super) fn wide(x: &Tensor) -> Tensor {
    x.cast(x.dtype().widened())
}

impl Tensor {
    /// Returns the cross entropy of logits and a distribution over the classes, both
    /// `[..., classes]`: one loss per distribution.
    #[track_caller]
    pub fn softmax_cross_entropy(&self, labels: &Tensor) -> Tensor {
        composed(self, "SoftmaxCrossEntropy", Location::caller(), || {
            -(wide(self).log_softmax() * wide(labels)).sum_axes(&[-1])
        })
    }

    /// Returns the binary cross entropy of logits and the probability of the positive class, for
    /// every element.
    #[track_caller]
    #[doc(alias = "sigmoid_cross_entropy_with_logits")]
    pub fn sigmoid_cross_entropy(&self, labels: &Tensor) -> Tensor {
        // -z log(sigmoid(x)) - (1 - z) log(1 - sigmoid(x)), in a form that cannot overflow.
        composed(self, "SigmoidCrossEntropy", Location::caller(), || {
            let x = wide(self);
            x.softplus() - &x * wide(labels)
        })
    }

    /// Returns the squared difference.
    #[track_caller]
    pub fn squared_error(&self, target: &Tensor) -> Tensor {
        composed(self, "SquaredError", Location::caller(), || (wide(self) - wide(target)).square())
    }

    /// Returns half the squared difference up to `delta`, and a linear loss beyond (Huber, 1964).
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64) -> Tensor {
        if delta.is_nan() || delta <= 0.0 {
            return self
                .fail("HuberLoss", Error::argument(format!("delta is {delta}, but must be positive")));
        }
        composed(self, "HuberLoss", Location::caller(), || {
            // With q = d clipped to [-delta, delta] the loss is q (d - q / 2). Unlike a form with
            // |d|, its second derivative at 0 is correct.
            let d = wide(self) - wide(target);
            let q = d.clip(-delta, delta);
            &q * (&d - &q * 0.5)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        binary("SigmoidCrossEntropy", Twice, [AwayFromZero, Any], Tensor::sigmoid_cross_entropy),
        binary("SquaredError", Twice, [Any, Any], Tensor::squared_error),
        binary("HuberLoss", Twice, [Apart, Apart], |x, y| (x * 3.0).huber_loss(&(y * 3.0), 0.611)),
        case("SoftmaxCrossEntropy", Twice, |draw| {
            let rank = draw.between(1, 3);
            let mut sizes = draw.sizes(rank);
            sizes[rank - 1] = sizes[rank - 1].max(1);
            let inputs = vec![Input::floats(draw, sizes.clone(), Any), Input::floats(draw, sizes, Positive)];
            Trial::new(inputs, |x| vec![x[0].softmax_cross_entropy(&x[1])])
        }),
    ];
}
