//! Splits a tensor into equal parts along one axis in one operation. Its gradient concatenates
//! those of the parts in one pass, where the gradients of separate slices would each fill a whole
//! tensor.

use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// Produces `count` views, in order.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Cut {
    count: usize,
    axis: usize,
}
crate::exported!(Cut, 1..=1);

/// The maximum number of parts.
const MAX_PARTS: usize = 1 << 16;

impl OpDef for Cut {
    fn name(&self) -> &str {
        "Cut"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        super::axis_of(&x.shape, self.axis)?;
        if !(1..=MAX_PARTS).contains(&self.count) {
            return Err(Error::argument(format!(
                "the number of parts must be 1 to {MAX_PARTS}, got {}",
                self.count
            )));
        }
        let mut dims: Vec<Dim> = x.shape.to_vec();
        dims[self.axis] = match dims[self.axis] {
            Dim::Known(n) if n.is_multiple_of(self.count) => Dim::Known(n / self.count),
            Dim::Known(n) => {
                return Err(Error::shape(format!(
                    "a size of {n} cannot be split into {} equal parts",
                    self.count
                )));
            }
            n => Dim::derived("cut", &[n], &[self.count]),
        };
        Ok(vec![Spec { dtype: x.dtype, shape: dims.into() }; self.count])
    }

    fn output_count(&self) -> usize {
        self.count
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let nothing = |i: usize| cx.output(i).zero().broadcast_like(cx.output(i));
        let part = |i: usize| cx.output_grad(i).cloned().unwrap_or_else(|| nothing(i));
        let parts: Vec<Tensor> = (0..self.count).map(part).collect();
        Ok(vec![Some(cx.input(0).graph().concat(&parts, self.axis as isize))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, sizes) = (cx.input(0), cx.output_sizes(0));
        let part = |i: usize| {
            let mut begin = vec![0; sizes.len()];
            begin[self.axis] = i * sizes[self.axis];
            x.slice(&begin, &vec![1; sizes.len()], &sizes)
        };
        Ok((0..self.count).map(part).collect())
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let part = |k: usize| {
            Array::from_fn(cx.output_dtype(k), cx.output_sizes(k), |i| {
                let mut at = i.to_vec();
                at[self.axis] += k * cx.output_sizes(k)[self.axis];
                cx.input(0).at(&at)
            })
        };
        Ok((0..self.count).map(part).collect())
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let stored = cx.stored(&x);
        let dims = cx.per_stored_axis(&x, cx.output_shape(0));
        let outputs = vec![(x.dtype(), dims.into()); self.count];
        let attributes = [
            ("axis", Attr::Int(cx.stored_axis(&x, self.axis))),
            ("num_outputs", Attr::Int(self.count as i64)),
        ];
        let parts = cx.nodes("Split", &[&stored], &attributes, &outputs)?;
        Ok(parts.iter().map(|part| cx.restored(part, &x)).collect())
    }
}

impl Tensor {
    /// Splits this tensor into `count` equal parts along `axis`, in order, as views.
    #[track_caller]
    pub(crate) fn cut(&self, count: usize, axis: isize) -> Vec<Tensor> {
        let parts = match axis_in(axis, self.rank()) {
            _ if self.is_poison() => Vec::new(),
            Ok(axis) if count > 0 => Tensor::apply(Cut { count, axis }, &[self]),
            Ok(_) => vec![self.fail("Cut", Error::argument("cannot split a tensor into 0 parts"))],
            Err(e) => vec![self.fail("Cut", e)],
        };
        match parts.first() {
            Some(first) if !first.is_poison() => parts,
            _ => vec![Tensor::poison(self.graph()); count],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Cut", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (mut sizes, axis, count) = (draw.solid(rank), draw.below(rank), draw.between(1, 4));
            sizes[axis] *= count;
            let unused = draw.below(count + 1);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                let parts = x[0].square().cut(count, axis as isize);
                let used = parts.into_iter().enumerate().filter(|(i, _)| count == 1 || *i != unused);
                used.map(|(_, part)| part).collect()
            })
        })
        .empty("x.cut(2, 0)[1]", "[0, 3]", "empty [0, 3]", |x| x[0].cut(2, 0).remove(1)),
    ];
}
