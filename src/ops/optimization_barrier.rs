//! A barrier that keeps compilers from recomputing a tensor for each of its readers.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::Result;

/// The input, computed once: all readers see the same bits.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OptimizationBarrier;
crate::exported!(OptimizationBarrier, 1..=1);

impl OpDef for OptimizationBarrier {
    fn name(&self) -> &str {
        "OptimizationBarrier"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().clone())])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        cx.materialize(&x);
        Ok(vec![x])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).clone()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.input(0)])
    }
}

impl Tensor {
    /// Returns this tensor, with its elements computed once for all readers; see
    /// [`LowerCx::materialize`].
    ///
    /// Use it before comparing a tensor with a value computed from it. Otherwise XLA may compare
    /// with elements that it recomputed with different rounding.
    #[track_caller]
    pub(crate) fn optimization_barrier(&self) -> Tensor {
        Tensor::apply_one(OptimizationBarrier, &[self])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![unary("OptimizationBarrier", Twice, Any, |x| (x * 3.0).optimization_barrier()),];
}
