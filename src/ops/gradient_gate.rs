//! Blocks gradients of what a branch or a step computes but does not use.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Error, Result};

/// Input 0, whose gradient is zero, even where it would be NaN, if the scalar input 1 is false.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct GradientGate;
crate::exported!(GradientGate, 2..=2);

impl OpDef for GradientGate {
    fn name(&self) -> &str {
        "GradientGate"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x, open] if open.dtype == DType::Bool && open.shape.rank() == 0 => Ok(vec![x.clone()]),
            _ => Err(Error::argument("expected a tensor and a bool scalar")),
        }
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.input(1).select(cx.dy(), &cx.dy().zero())), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).clone()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.input(0)])
    }
}

impl Tensor {
    /// Returns this tensor. Its gradient is zero if `open`, a bool scalar, is false: a selection
    /// multiplies the derivatives of what it does not select by zero, which is NaN if they are infinite.
    #[track_caller]
    pub(crate) fn with_gradient_if(&self, open: &Tensor) -> Tensor {
        Tensor::apply_one(GradientGate, &[self, open])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![case("GradientGate", Twice, |draw| {
        let rank = draw.between(0, 3);
        let sizes = draw.sizes(rank);
        let inputs = vec![Input::floats(draw, sizes, Any), Input::new(draw, [], Elements::Bools)];
        Trial::new(inputs, |x| vec![x[1].select(&x[0].with_gradient_if(&x[1]).sin(), &x[0].zero())])
    })];
}
