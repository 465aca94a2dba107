//! Cumulative sums along an axis.

use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{self, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Error, Result, element_count};

/// Options of a cumulative sum. By default it is inclusive and runs from the first element to the
/// last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CumsumOptions {
    /// Whether each sum excludes its own element, so that the first sum is 0.
    pub exclusive: bool,
    /// Whether to sum from the last element to the first.
    pub reverse: bool,
}

/// Cumulative sums along an axis.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Cumsum {
    axis: usize,
    options: CumsumOptions,
}
crate::exported!(Cumsum, 1..=1);

impl OpDef for Cumsum {
    fn name(&self) -> &str {
        "Cumsum"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        super::axis_of(&inputs[0].shape, self.axis)?;
        match inputs[0].dtype {
            d @ (DType::U8 | DType::Bool) => {
                Err(Error::dtype(format!("{d} elements cannot be summed; cast them to i64 first")))
            }
            _ => Ok(vec![inputs[0].clone()]),
        }
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Wide
    }

    /// An element contributes to all sums from its position on, so its gradient is the cumulative
    /// sum of their gradients from the other end.
    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let options = CumsumOptions { reverse: !self.options.reverse, ..self.options };
        Ok(vec![Some(Tensor::apply_one(Cumsum { axis: self.axis, options }, &[cx.dy()]))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, CumsumOptions { exclusive, reverse }) = (cx.input(0), self.options);
        let cumsum = kir::Cumsum {
            outer: element_count(&x.sizes[..self.axis])?,
            len: x.sizes[self.axis],
            inner: element_count(&x.sizes[self.axis + 1..])?,
            exclusive,
            reverse,
        };
        Ok(vec![cx.cumsum(cumsum, &x)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, mut y) = (cx.input(0), Array::zeros(cx.output_dtype(0), cx.output_sizes(0)));
        let (CumsumOptions { exclusive, reverse }, len) = (self.options, x.sizes()[self.axis]);
        let mut lines = x.sizes().to_vec();
        lines[self.axis] = 1;
        for mut i in Indices::new(&lines) {
            let mut total = cx.running_sum();
            for step in 0..len {
                i[self.axis] = if reverse { len - 1 - step } else { step };
                let before = total.value(x.dtype());
                total.add(x.at(&i));
                y.set(&i, if exclusive { before } else { total.value(x.dtype()) });
            }
        }
        Ok(vec![y])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let stored = cx.stored(&x);
        let axis = cx.scalar(cx.stored_axis(&x, self.axis) as f64, DType::I64)?;
        let CumsumOptions { exclusive, reverse } = self.options;
        let attributes = [("exclusive", Attr::Int(exclusive.into())), ("reverse", Attr::Int(reverse.into()))];
        let y = cx.node("CumSum", &[&stored, &axis], &attributes, x.dtype(), stored.shape().clone())?;
        Ok(vec![cx.restored(&y, &x)])
    }
}

impl Tensor {
    /// Returns the inclusive cumulative sum along `axis`. Integers and bool give i64. The CPU
    /// engine accumulates f32, bf16 and f16 in f64, so the error does not grow with the length.
    #[track_caller]
    pub fn cumsum(&self, axis: isize) -> Tensor {
        self.cumsum_with(axis, CumsumOptions::default())
    }

    /// Returns the cumulative sum along `axis`, from either end, inclusive or exclusive.
    #[track_caller]
    pub fn cumsum_with(&self, axis: isize, options: CumsumOptions) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank()) {
            Ok(axis) => {
                let wide = if self.dtype().is_float() { self.clone() } else { self.cast(DType::I64) };
                Tensor::apply_one(Cumsum { axis, options }, &[&wide])
            }
            Err(e) => self.fail("Cumsum", e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("Cumsum", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank) as isize);
            let options = CumsumOptions { exclusive: draw.below(2) == 1, reverse: draw.below(2) == 1 };
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().cumsum_with(axis, options)]
            })
        })
        .empty("x.cumsum(0)", "[0, 3]", "empty [0, 3]", |x| x[0].cumsum(0)),
    ];
}
