//! A check that two tensors agree in some dims, where broadcasting would hide that they do not.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// Input 0, whose first dims must equal those of input 1. It lowers to a view, so it costs nothing.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct SameDims {
    dims: usize,
    /// Describes the expected tensor, for the error.
    takes: String,
}
crate::exported!(SameDims, 2..=2);

impl OpDef for SameDims {
    fn name(&self) -> &str {
        "SameDims"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, like) = (&inputs[0], &inputs[1]);
        let mismatch =
            || Error::shape(format!("expected {}, got {} for {}", self.takes, x.shape, like.shape));
        if x.shape.rank().min(like.shape.rank()) < self.dims {
            return Err(mismatch());
        }
        let mut dims: Vec<Dim> = x.shape.iter().copied().collect();
        for (own, other) in dims.iter_mut().zip(like.shape.iter()).take(self.dims) {
            match (own.known(), other.known()) {
                (Some(a), Some(b)) if a != b => return Err(mismatch()),
                (None, Some(_)) => *own = *other,
                _ => {}
            }
        }
        Ok(vec![Spec { dtype: x.dtype, shape: dims.into() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().clone()), None])
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
    /// Checks that the first `dims` dims equal those of `like`, now or once shapes are known, and
    /// returns this tensor. `takes` describes the expected tensor in the error.
    #[track_caller]
    pub(crate) fn with_dims_of(&self, like: &Tensor, dims: usize, takes: &str) -> Tensor {
        Tensor::apply_one(SameDims { dims, takes: takes.into() }, &[self, like])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("SameDims", Twice, |draw| {
            let rank = draw.between(1, 3);
            let sizes = draw.sizes(rank);
            let inputs = vec![Input::floats(draw, sizes.clone(), Any), Input::floats(draw, sizes, Any)];
            Trial::new(inputs, |x| vec![x[0].with_dims_of(&x[1], 1, "rows").square()])
        })
        .empty("x.with_dims_of(y, 1, \"rows\")", "[0, 3], [0, 2]", "empty [0, 3]", |x| x[0]
            .with_dims_of(&x[1], 1, "rows")),
    ];
}
