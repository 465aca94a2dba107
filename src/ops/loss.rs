//! Losses, one for each element or example; the cost is usually their mean. What is bf16 is compared in f32, for a
//! mean of many losses needs more than bf16's eight bits.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{DType, Error};

/// The tensor as losses are computed: bf16 as f32.
#[track_caller]
pub(super) fn wide(x: &Tensor) -> Tensor {
    if x.dtype() == DType::Bf16 { x.cast(DType::F32) } else { x.clone() }
}

impl Tensor {
    /// The cross entropy of logits and a distribution over the classes, both `[..., classes]`: one loss for each
    /// distribution.
    #[track_caller]
    pub fn softmax_cross_entropy(&self, labels: &Tensor) -> Tensor {
        composed(self, "SoftmaxCrossEntropy", Location::caller(), || {
            -(wide(self).log_softmax() * wide(labels)).sum_axes(&[-1])
        })
    }

    /// The cross entropy of logits and the probability of yes, for every element.
    #[track_caller]
    #[doc(alias = "sigmoid_cross_entropy_with_logits")]
    pub fn sigmoid_cross_entropy(&self, labels: &Tensor) -> Tensor {
        // -z log(sigmoid(x)) - (1 - z) log(1 - sigmoid(x)), with nothing that overflows.
        composed(self, "SigmoidCrossEntropy", Location::caller(), || {
            let x = wide(self);
            x.softplus() - &x * wide(labels)
        })
    }

    /// The square of the difference.
    #[track_caller]
    pub fn squared_error(&self, target: &Tensor) -> Tensor {
        composed(self, "SquaredError", Location::caller(), || (wide(self) - wide(target)).square())
    }

    /// Half the square of the difference where that is at most `delta`, and linear beyond (Huber, 1964).
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64) -> Tensor {
        if delta.is_nan() || delta <= 0.0 {
            return self.fail("HuberLoss", Error::argument(format!("a delta of {delta} is not positive")));
        }
        composed(self, "HuberLoss", Location::caller(), || {
            // With q = d clipped to [-delta, delta] the loss is q (d - q / 2). Unlike a form with
            // |d|, its second derivative at 0 is right.
            let d = wide(self) - wide(target);
            let q = d.clip(-delta, delta);
            &q * (&d - &q * 0.5)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

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
