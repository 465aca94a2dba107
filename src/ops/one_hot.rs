//! One-hot encoding of class indices.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Dim, Error, Result};

/// A new last dim that is 1 at the index given by the input and 0 elsewhere.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OneHot {
    classes: usize,
    dtype: DType,
}
crate::exported!(OneHot, 1..=1);

impl OpDef for OneHot {
    fn name(&self) -> &str {
        "OneHot"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if !inputs[0].dtype.is_int() {
            return Err(Error::dtype(format!("expected integer classes, got {}", inputs[0].dtype)));
        }
        let dims = inputs[0].shape.iter().copied().chain([Dim::Known(self.classes)]);
        Ok(vec![Spec { dtype: self.dtype, shape: dims.collect::<Vec<_>>().into() }])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (labels, out) = (cx.input(0), cx.output_sizes(0));
        let mut column = out.clone();
        column[out.len() - 1] = 1;
        let labels = cx.reshape(&labels, &column);
        Ok(vec![cx.map(&[&labels], |e, r| {
            let index = e.index(out.len() - 1, Class::I64);
            let hit = e.binary(Binary::Eq, r[0], index);
            e.cast(Class::from_dtype(self.dtype), hit)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let (class, at) = i.split_last().expect("the last dim is the class");
            Scalar::Int(i64::from(cx.input(0).int(at) == *class as i64))
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        // ONNX's OneHot counts negative classes from the end.
        let x = cx.cast(&cx.input(0), DType::I64)?;
        let column = cx.unsqueeze(&x, &[x.shape().rank()])?;
        let classes = cx.ints(&(0..self.classes as i64).collect::<Vec<_>>())?;
        let equal = cx.elementwise("Equal", &[&column, &classes], &[], DType::Bool)?;
        Ok(vec![cx.cast(&equal, self.dtype)?])
    }
}

impl Tensor {
    /// Encodes integers as one-hot vectors of `classes` elements of type `dtype`; all zeros if the
    /// integer is out of range.
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Tensor {
        Tensor::apply_one(OneHot { classes, dtype }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("OneHot", Never("integer input"), |draw| {
            let (rank, classes) = (draw.below(3), draw.below(6));
            let sizes = draw.sizes(rank);
            // Classes out of range too: those give all zeros.
            let dtype = draw.pick(&[DType::I32, DType::I64, DType::U8]);
            let labels = Input::new(draw, sizes, Elements::Below(dtype, classes + 2));
            Trial::new(vec![labels], move |x| vec![x[0].one_hot(classes, DType::F32)])
        })
        .empty("x.one_hot(4, F32)", "i32[0]", "empty [0, 4]", |x| x[0].one_hot(4, DType::F32))
        .empty("x.one_hot(0, F32)", "i32[2]", "empty [2, 0]", |x| x[0].one_hot(0, DType::F32)),
    ];
}
