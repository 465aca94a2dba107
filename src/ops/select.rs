//! Elementwise selection between two tensors.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Class, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Error, Result};

/// Input 1 where input 0 is true, else input 2.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Select;
crate::exported!(Select, 3..=3);

impl OpDef for Select {
    fn name(&self) -> &str {
        "Select"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [condition, a, b] = inputs else { return Err(Error::argument("expected three inputs")) };
        if condition.dtype != DType::Bool || a.dtype != b.dtype {
            return Err(Error::dtype(format!(
                "expected a bool condition and two tensors of one type, got {}, {} and {}",
                condition.dtype, a.dtype, b.dtype
            )));
        }
        let shape = condition.shape.broadcast(&a.shape)?.broadcast(&b.shape)?;
        Ok(vec![Spec { dtype: a.dtype, shape }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (condition, dy) = (cx.input(0), cx.dy());
        let (a, b) = (cx.input(1), cx.input(2));
        Ok(vec![
            None,
            cx.needs(1).then(|| condition.select(dy, &dy.zero()).sum_like(a)),
            cx.needs(2).then(|| condition.select(&dy.zero(), dy).sum_like(b)),
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (c, a, b) = (cx.input(0), cx.input(1), cx.input(2));
        let class = Class::from_dtype(a.dtype);
        Ok(vec![cx.map(&[&c, &a, &b], |e, r| {
            let condition = e.cast(class, r[0]);
            e.select(condition, r[1], r[2])
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let chosen = if cx.input(0).broadcast_at(i).as_i64() != 0 { 1 } else { 2 };
            cx.input(chosen).broadcast_at(i)
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let [condition, a, b] = [0, 1, 2].map(|i| cx.input(i));
        Ok(vec![cx.elementwise("Where", &[&condition, &a, &b], &[], a.dtype())?])
    }
}

impl Tensor {
    /// Returns `a` where this is true, else `b`; all three are broadcast together.
    #[track_caller]
    #[doc(alias = "where")]
    pub fn select(&self, a: &Tensor, b: &Tensor) -> Tensor {
        Tensor::apply_one(Select, &[self, a, b])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    /// Returns the sizes that two inputs broadcast to.
    fn broadcast(inputs: &[Input]) -> Vec<usize> {
        let rank = inputs.iter().map(|i| i.sizes.len()).max().unwrap_or(0);
        let size = |i: &Input, d: usize| (d + i.sizes.len()).checked_sub(rank).map_or(1, |at| i.sizes[at]);
        let dim = |d| inputs.iter().map(|i| size(i, d)).find(|&n| n != 1).unwrap_or(1);
        (0..rank).map(dim).collect()
    }

    cases![
        case("Select", Twice, |draw| {
            let mut inputs = pair(draw, [Elements::Floats(Any); 2]);
            let sizes = draw.broadcasting(&broadcast(&inputs));
            inputs.push(Input::new(draw, sizes, Elements::Bools));
            Trial::new(inputs, |x| vec![x[2].select(&x[0], &x[1])])
        })
        .empty("x.select(y, z)", "bool[0, 1], [1, 3], [3]", "empty [0, 3]", |x| x[0].select(&x[1], &x[2])),
    ];
}
