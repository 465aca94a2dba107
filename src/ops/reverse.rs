//! Reversal of dims, as a view: no element moves.

use super::reduce::{check_axes, resolve_axes};
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::Result;

/// Reverses these dims.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Reverse(Vec<usize>);
crate::exported!(Reverse, 1..=1);

impl OpDef for Reverse {
    fn name(&self) -> &str {
        "Reverse"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        check_axes(&inputs[0].shape, &self.0)?;
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(Tensor::apply_one(Reverse(self.0.clone()), &[cx.dy()]))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).reverse(&self.0)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let sizes = cx.output_sizes(0);
        Ok(cx.output(|i| {
            let from_last = |d: usize| if self.0.contains(&d) { sizes[d] - 1 - i[d] } else { i[d] };
            cx.input(0).at(&(0..i.len()).map(from_last).collect::<Vec<usize>>())
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let stored = cx.stored(&x);
        let axes: Vec<i64> = self.0.iter().map(|&axis| cx.stored_axis(&x, axis)).collect();
        let all = |cx: &mut ExportCx<'_>, value: i64| cx.ints(&vec![value; axes.len()]);
        let (begin, end, step) = (all(cx, -1)?, all(cx, i64::MIN)?, all(cx, -1)?);
        let axes = cx.ints(&axes)?;
        let y =
            cx.node("Slice", &[&stored, &begin, &end, &axes, &step], &[], x.dtype(), stored.shape().clone())?;
        Ok(vec![cx.restored(&y, &x)])
    }
}

impl Tensor {
    /// Reverses `axes` (empty: all).
    #[track_caller]
    #[doc(alias = "flip")]
    pub fn reverse(&self, axes: &[isize]) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match resolve_axes(self, axes) {
            Ok(axes) => Tensor::apply_one(Reverse(axes), &[self]),
            Err(e) => self.fail("Reverse", e),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        reduction("Reverse", Twice, Any, true, |x, axes| vec![
            x.square().reverse(axes).exp(),
            x.reverse(axes)
        ])
        .empty("x.reverse([0])", "[0, 3]", "empty [0, 3]", |x| x[0].reverse(&[0])),
    ];
}
