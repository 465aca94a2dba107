//! Slices with strides, as views: no element moves.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// Every `step`-th index from `begin` to `end` of each dim; an `end` of `None` means to the end.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Slice {
    begin: Vec<usize>,
    end: Vec<Option<usize>>,
    step: Vec<usize>,
}
crate::exported!(Slice, 1..=1);

impl OpDef for Slice {
    fn name(&self) -> &str {
        "Slice"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let shape = &inputs[0].shape;
        let given = [self.begin.len(), self.end.len(), self.step.len()];
        if given.iter().any(|&n| n != shape.rank()) {
            return Err(Error::argument(format!("{shape} needs begin, end and step for each of its dims")));
        }
        let dim = |i: usize| {
            let (begin, end, step) = (self.begin[i], self.end[i], self.step[i]);
            if step == 0 {
                return Err(Error::argument(format!("the step of dim {i} must be at least 1")));
            }
            match shape[i] {
                Dim::Unknown(_) if (begin, end, step) == (0, None, 1) => Ok(shape[i]),
                Dim::Unknown(_) => {
                    Ok(Dim::derived("slice", &[shape[i]], &[begin, end.map_or(usize::MAX, |e| e), step]))
                }
                Dim::Known(n) => {
                    let end = end.unwrap_or(n);
                    if begin > end || end > n {
                        return Err(Error::shape(format!(
                            "{begin}..{end} is out of range for dim {i} of {shape}"
                        )));
                    }
                    Ok(Dim::Known((end - begin).div_ceil(step)))
                }
            }
        };
        let dims = (0..shape.rank()).map(dim).collect::<Result<Vec<Dim>>>()?;
        Ok(vec![Spec { dtype: inputs[0].dtype, shape: dims.into() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(super::pad::unslice(cx.dy(), cx.input(0), &self.begin, &self.step))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).slice(&self.begin, &self.step, &cx.output_sizes(0))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let at: Vec<usize> = (0..i.len()).map(|d| self.begin[d] + i[d] * self.step[d]).collect();
            cx.input(0).at(&at)
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        // ONNX has no slices of scalars.
        if x.shape().rank() == 0 {
            return Ok(vec![x]);
        }
        let begin: Vec<i64> = self.begin.iter().map(|&n| n as i64).collect();
        let end: Vec<i64> = self.end.iter().map(|n| n.map_or(i64::MAX, |n| n as i64)).collect();
        let step: Vec<i64> = self.step.iter().map(|&n| n as i64).collect();
        let axes: Vec<i64> = (0..begin.len() as i64).collect();
        let [begin, end, step] = [begin, end, step].map(|values| cx.per_stored_axis(&x, &values));
        let (begin, end, axes, step) = (cx.ints(&begin)?, cx.ints(&end)?, cx.ints(&axes)?, cx.ints(&step)?);
        let dims = cx.per_stored_axis(&x, cx.output_shape(0));
        let y = cx.node("Slice", &[&cx.stored(&x), &begin, &end, &axes, &step], &[], x.dtype(), dims)?;
        Ok(vec![cx.restored(&y, &x)])
    }
}

impl Tensor {
    /// Returns every `step[i]`-th index from `begin[i]` to `end[i]` (`None`: to the end) of each
    /// dim.
    #[track_caller]
    pub fn strided_slice(&self, begin: &[usize], end: &[Option<usize>], step: &[usize]) -> Tensor {
        let op = Slice { begin: begin.to_vec(), end: end.to_vec(), step: step.to_vec() };
        Tensor::apply_one(op, &[self])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Slice", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            let begin: Vec<usize> = sizes.iter().map(|&n| draw.below(n + 1)).collect();
            let end: Vec<Option<usize>> = sizes
                .iter()
                .zip(&begin)
                .map(|(&n, &b)| if draw.below(2) == 0 { None } else { Some(draw.between(b, n)) })
                .collect();
            let step: Vec<usize> = (0..rank).map(|_| draw.between(1, 3)).collect();
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().strided_slice(&begin, &end, &step)]
            })
        })
        .empty("x.strided_slice([0], [None], [2])", "[0]", "empty [0]", |x| x[0].strided_slice(
            &[0],
            &[None],
            &[2]
        ))
        .empty("x.strided_slice([5], [5], [1])", "[5]", "empty [0]", |x| x[0].strided_slice(
            &[5],
            &[Some(5)],
            &[1]
        ))
        .empty(
            "x.strided_slice([0], [1], [1])",
            "[0]",
            "error: 0..1 is out of range for dim 0 of [0]",
            |x| x[0].strided_slice(&[0], &[Some(1)], &[1])
        ),
    ];
    use crate::graph::{Graph, TensorSpec};

    #[test]
    fn out_of_range_names_the_dim() {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", [Some(4), Some(4)]));
        let _ = x.strided_slice(&[0, 3], &[None, Some(5)], &[1, 1]);
        let e = g.freeze().unwrap_err();
        assert!(e.message().contains("3..5 is out of range for dim 1 of [4, 4]"), "{e}");
    }
}
