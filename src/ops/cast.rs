//! Conversion between element types.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, LowerCx, View};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Result};

/// Every element in another type, as Rust's `as` converts; to bool, whether it is not zero.
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
                let zero = e.constant(0.0, Class::of(x.dtype));
                let nonzero = e.binary(Binary::Ne, r[0], zero);
                return e.cast(Class::I64, nonzero);
            }
            // Floats go to narrow integers in one step, as they are stored: by way of a wide one they would wrap where
            // `as` stops at the largest.
            match self.0 {
                DType::I32 | DType::U8 if x.dtype.is_float() => r[0],
                _ => e.cast(Class::of(self.0), r[0]),
            }
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        // Floats keep all their digits, whatever float type they are declared to become.
        Ok(vec![cx.input(0).map(self.0, |v| v)])
    }
}

impl Tensor {
    /// This tensor with elements of type `dtype`.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        if self.dtype() == dtype { self.clone() } else { Tensor::apply_one(Cast(dtype), &[self]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        unary("Cast", Never("each type has its own rounding: see integers"), Halves, |x| x.cast(DType::I32)),
    ];
}
