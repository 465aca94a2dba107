//! Stops differentiation.

use crate::graph::{GradCx, OpDef, OpTraits, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::Result;

/// The input, treated as a constant by differentiation.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct StopGradient;
crate::exported!(StopGradient, 1..=1);

impl OpDef for StopGradient {
    fn name(&self) -> &str {
        "StopGradient"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
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

    fn traits(&self) -> OpTraits {
        OpTraits { stops_gradient: true, ..OpTraits::PURE }
    }
}

impl Tensor {
    /// Returns this tensor, without letting gradients flow through it.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        Tensor::apply_one(StopGradient, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![unary("StopGradient", Never("it stops gradients on purpose"), Any, Tensor::stop_gradient),];
}
