//! Permutation of dims, as a view: no element moves.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Error, Result};

/// Dim `i` of the result is dim `.0[i]` of the input.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Transpose(Vec<usize>);
crate::exported!(Transpose, 1..=1);

impl OpDef for Transpose {
    fn name(&self) -> &str {
        "Transpose"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        if sorted != (0..x.shape.rank()).collect::<Vec<_>>() {
            return Err(Error::argument(format!(
                "{:?} is not a permutation of the {} dims of {}",
                self.0,
                x.shape.rank(),
                x.shape
            )));
        }
        let shape = self.0.iter().map(|&i| x.shape[i]).collect::<Vec<_>>().into();
        Ok(vec![Spec { dtype: x.dtype, shape }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let mut inverse = vec![0; self.0.len()];
        self.0.iter().enumerate().for_each(|(i, &from)| inverse[from] = i);
        Ok(vec![Some(cx.dy().transpose(&inverse))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).permute(&self.0)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let mut at = vec![0; i.len()];
            self.0.iter().zip(i).for_each(|(&from, &i)| at[from] = i);
            cx.input(0).at(&at)
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.transpose(&cx.input(0), &self.0)])
    }
}

impl Tensor {
    /// Permutes the dims: dim `i` of the result is dim `order[i]` of this tensor.
    #[track_caller]
    pub fn transpose(&self, order: &[usize]) -> Tensor {
        Tensor::apply_one(Transpose(order.to_vec()), &[self])
    }

    /// Swaps the last two dims.
    #[track_caller]
    pub fn matrix_transpose(&self) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let n = self.rank();
        if n < 2 {
            return self.fail("Transpose", Error::shape(format!("{} is not a matrix", self.shape())));
        }
        let mut order: Vec<usize> = (0..n).collect();
        order.swap(n - 2, n - 1);
        self.transpose(&order)
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Transpose", Twice, |draw| {
            let rank = draw.below(5);
            let (sizes, order) = (draw.sizes(rank), draw.order(rank));
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].transpose(&order).square()])
        })
        .empty("x.transpose([1, 0])", "[0, 3]", "empty [3, 0]", |x| x[0].transpose(&[1, 0])),
    ];
}
