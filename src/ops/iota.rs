//! Iota: consecutive integers.

use crate::graph::{GradCx, Graph, OpDef, Spec, Tensor, axis_in};
use crate::kir::{Class, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, HostTensor, Result, Shape};

/// The index along an axis, in the shape of the input, or of the given length if there is no input.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Iota {
    axis: usize,
    dtype: DType,
    len: usize,
}
crate::exported!(Iota, 0..=1);

impl OpDef for Iota {
    fn name(&self) -> &str {
        "Iota"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if self.dtype == DType::Bool {
            return Err(Error::dtype("expected a numeric type, got bool"));
        }
        let shape = inputs.first().map_or_else(|| [self.len].into(), |x| x.shape.clone());
        super::axis_of(&shape, self.axis)?;
        Ok(vec![Spec { dtype: self.dtype, shape }])
    }

    fn shape_only(&self, _: usize) -> bool {
        true
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None; cx.input_count()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let class = Class::from_dtype(self.dtype);
        Ok(vec![cx.map(&[], |e, _| e.index(self.axis, class))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| Scalar::Int(i[self.axis] as i64)))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let shape = cx.output_shape(0).clone();
        let like: Vec<Value> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        let indices = match shape[self.axis].known() {
            Some(n) => {
                let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
                cx.constant(HostTensor::from_f64(self.dtype, [n], &values)?)
            }
            None => {
                let size = cx.size_of(&like[0], self.axis)?;
                let size = cx.reshape(&size, &Shape::scalar(), &[])?;
                let [zero, one] = [0.0, 1.0].map(|v| cx.scalar(v, DType::I64));
                let range =
                    cx.node("Range", &[&zero?, &size, &one?], &[], DType::I64, vec![shape[self.axis]])?;
                cx.cast(&range, self.dtype)?
            }
        };
        if shape.rank() == 1 {
            return Ok(vec![indices]);
        }
        let others: Vec<usize> = (0..shape.rank()).filter(|&i| i != self.axis).collect();
        let column = cx.unsqueeze(&indices, &others)?;
        let sizes = cx.dims(&shape, &like)?;
        Ok(vec![cx.node("Expand", &[&column, &sizes], &[], self.dtype, shape)?])
    }
}

impl Graph {
    /// Returns the numbers `0..len`.
    #[track_caller]
    #[doc(alias = "range")]
    #[doc(alias = "arange")]
    pub fn iota(&self, len: usize, dtype: DType) -> Tensor {
        let op = Arc::new(Iota { axis: 0, dtype, len });
        self.add_op(op, &[]).pop().unwrap_or_else(|| Tensor::poison(self))
    }
}

impl Tensor {
    /// Returns the index along `axis` of every element, in this tensor's shape.
    #[track_caller]
    pub fn iota_like(&self, axis: isize, dtype: DType) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank()) {
            Ok(axis) => Tensor::apply_one(Iota { axis, dtype, len: 0 }, &[self]),
            Err(e) => self.fail("Iota", e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("Iota", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank) as isize);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                let index = x[0].iota_like(axis, x[0].dtype());
                vec![(&x[0] * index).square()]
            })
        })
        .empty("x.iota_like(1, I32)", "[0, 3]", "empty [0, 3]", |x| x[0].iota_like(1, DType::I32))
        .empty("iota(0, I32)", "[1]", "empty [0]", |x| x[0].graph().iota(0, DType::I32)),
    ];
}
