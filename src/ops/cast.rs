//! Conversion between element types.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Result};

/// Converts every element to another type, like Rust's `as`; to bool, whether it is not zero.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Cast(DType);
crate::exported!(Cast, 1..=1);

impl OpDef for Cast {
    fn name(&self) -> &str {
        "Cast"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec { dtype: self.0, shape: inputs[0].shape.clone() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let x = cx.input(0);
        Ok(vec![x.dtype().is_float().then(|| cx.dy().cast(x.dtype()))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        Ok(vec![cx.map(&[&x], |e, r| {
            if self.0 == DType::Bool {
                let zero = e.constant(0.0, Class::from_dtype(x.dtype));
                let nonzero = e.binary(Binary::Ne, r[0], zero);
                return e.cast(Class::I64, nonzero);
            }
            // Convert floats to narrow integers in one step, in the stored type: going through a
            // wide integer would wrap where `as` saturates.
            match self.0 {
                DType::I32 | DType::U8 if x.dtype.is_float() => r[0],
                _ => e.cast(Class::from_dtype(self.0), r[0]),
            }
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        // Keep the full f64 precision, whatever float type is declared.
        Ok(vec![cx.input(0).map(self.0, |v| v)])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.cast(&cx.input(0), self.0)?])
    }
}

impl Tensor {
    /// Converts the elements to type `dtype`.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        if self.dtype() == dtype { self.clone() } else { Tensor::apply_one(Cast(dtype), &[self]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        unary("Cast", Never("rounding depends on the type: see integers"), Halves, |x| x.cast(DType::I32)),
    ];
}
