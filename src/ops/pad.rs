//! Zero padding around and between elements.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result, Shape};

/// Adds zeros before, after and between the elements of each dim.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Pad {
    low: Vec<usize>,
    high: Vec<usize>,
    interior: Vec<usize>,
}
crate::exported!(Pad, 1..=1);

fn padded(n: usize, low: usize, high: usize, interior: usize) -> Option<usize> {
    let inside = n.saturating_sub(1).checked_mul(interior)?.checked_add(n)?;
    inside.checked_add(low)?.checked_add(high)
}

impl OpDef for Pad {
    fn name(&self) -> &str {
        "Pad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let shape = &inputs[0].shape;
        let given = [self.low.len(), self.high.len(), self.interior.len()];
        if given.iter().any(|&n| n != shape.rank()) {
            return Err(Error::argument(format!(
                "{shape} needs low, high and interior padding for each of its dims"
            )));
        }
        let dim = |i: usize| {
            let (low, high, interior) = (self.low[i], self.high[i], self.interior[i]);
            match shape[i] {
                Dim::Unknown(_) if (low, high, interior) == (0, 0, 0) => Ok(shape[i]),
                Dim::Unknown(_) => Ok(Dim::derived("pad", &[shape[i]], &[low, high, interior])),
                Dim::Known(n) => padded(n, low, high, interior).map(Dim::Known).ok_or_else(|| {
                    Error::shape(format!("dim {i} of {shape} padded by {low} and {high} is too large"))
                }),
            }
        };
        let dims = (0..shape.rank()).map(dim).collect::<Result<Vec<Dim>>>()?;
        Ok(vec![Spec { dtype: inputs[0].dtype, shape: dims.into() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(Tensor::apply_one(
            Unpad { low: self.low.clone(), interior: self.interior.clone() },
            &[cx.dy(), cx.input(0)],
        ))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        Ok(vec![cx.pad(&x, &self.low, &self.high, &self.interior)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let step: Vec<usize> = self.interior.iter().map(|i| i + 1).collect();
        Ok(spread(cx, &self.low, &step))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        // Runtimes cannot pad scalars.
        if x.shape().rank() == 0 {
            return Ok(vec![x]);
        }
        let (mut y, mut high) = (x.clone(), self.high.iter().map(|&n| n as i64).collect::<Vec<_>>());
        for (axis, &between) in self.interior.iter().enumerate().filter(|&(_, &between)| between > 0) {
            // Pads every element with zeros, of which those after the last one are removed below.
            let column = cx.unsqueeze(&y, &[axis + 1])?;
            let mut zeros = vec![0; 2 * column.shape().rank()];
            zeros[column.shape().rank() + axis + 1] = between as i64;
            let (zeros, mut dims) = (cx.ints(&zeros)?, column.shape().to_vec());
            dims[axis + 1] = Dim::Known(between + 1);
            let spread = cx.node("Pad", &[&column, &zeros], &[], x.dtype(), dims)?;
            let mut dims = y.shape().to_vec();
            dims[axis] = Dim::product(&[dims[axis], Dim::Known(between + 1)]);
            y = cx.reshape(&spread, &dims.into(), &[&spread])?;
            // An empty axis has no last element.
            high[axis] -= if x.shape()[axis] == Dim::Known(0) { 0 } else { between as i64 };
        }
        let low: Vec<i64> = self.low.iter().map(|&n| n as i64).collect();
        let pads = [cx.per_stored_axis(&y, &low), cx.per_stored_axis(&y, &high)].concat();
        let dims = cx.per_stored_axis(&y, cx.output_shape(0));
        let pads = cx.ints(&pads)?;
        let padded = cx.node("Pad", &[&cx.stored(&y), &pads], &[], x.dtype(), dims)?;
        Ok(vec![cx.restored(&padded, &y)])
    }
}

/// Checks that `part`, with stride `step` from `begin`, lies within `whole`.
fn lies_within(
    part: &Shape,
    begin: &[usize],
    step: impl Iterator<Item = Option<usize>>,
    whole: &Shape,
) -> Result<()> {
    let inside = |(i, step): (usize, Option<usize>)| match (part[i], whole[i]) {
        (Dim::Known(0), _) => true,
        (Dim::Known(n), Dim::Known(all)) => {
            let last = step.and_then(|s| (n - 1).checked_mul(s)).and_then(|far| far.checked_add(begin[i]));
            last.is_some_and(|last| last < all)
        }
        _ => true,
    };
    let step: Vec<Option<usize>> = step.collect();
    let ranks = [part.rank(), begin.len(), step.len()];
    match ranks.iter().all(|&n| n == whole.rank()) && step.into_iter().enumerate().all(inside) {
        true => Ok(()),
        false => Err(Error::shape(format!("{part} at offset {begin:?} does not lie within {whole}"))),
    }
}

/// The elements of input 0 that are not padding, in the shape of input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Unpad {
    low: Vec<usize>,
    interior: Vec<usize>,
}
crate::exported!(Unpad, 2..=2);

impl Unpad {
    fn step(&self) -> Vec<usize> {
        self.interior.iter().map(|i| i + 1).collect()
    }
}

impl OpDef for Unpad {
    fn name(&self) -> &str {
        "Unpad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (whole, part) = (&inputs[0], &inputs[1].shape);
        lies_within(part, &self.low, self.interior.iter().map(|i| i.checked_add(1)), &whole.shape)?;
        Ok(vec![Spec { dtype: whole.dtype, shape: part.clone() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(unslice(cx.dy(), cx.input(0), &self.low, &self.step())), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).slice(&self.low, &self.step(), &cx.output_sizes(0))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let step = self.step();
        Ok(cx.output(|i| {
            let at: Vec<usize> = (0..i.len()).map(|d| self.low[d] + i[d] * step[d]).collect();
            cx.input(0).at(&at)
        }))
    }
}

/// Input 0 scattered into zeros of the shape of input 1: the transpose of a slice.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Unslice {
    begin: Vec<usize>,
    step: Vec<usize>,
}
crate::exported!(Unslice, 2..=2);

impl OpDef for Unslice {
    fn name(&self) -> &str {
        "Unslice"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (part, whole) = (&inputs[0], &inputs[1].shape);
        lies_within(&part.shape, &self.begin, self.step.iter().map(|&s| (s > 0).then_some(s)), whole)?;
        Ok(vec![Spec { dtype: part.dtype, shape: whole.clone() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let interior = self.step.iter().map(|s| s - 1).collect();
        let op = Unpad { low: self.begin.clone(), interior };
        Ok(vec![Some(Tensor::apply_one(op, &[cx.dy(), cx.input(0)])), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let interior: Vec<usize> = self.step.iter().map(|s| s - 1).collect();
        let inside = |i: usize| padded(x.sizes[i], self.begin[i], 0, interior[i]).unwrap_or(to[i]);
        // An empty slice may begin anywhere: its gradient is all zeros.
        let low: Vec<usize> = (0..to.len()).map(|i| self.begin[i].min(to[i])).collect();
        let high: Vec<usize> = (0..to.len()).map(|i| to[i].saturating_sub(inside(i))).collect();
        Ok(vec![cx.pad(&x, &low, &high, &interior)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(spread(cx, &self.begin, &self.step))
    }
}

/// Returns output 0 with element `i` of input 0 at `begin + i * step` in every dim, and zeros
/// elsewhere.
fn spread(cx: &EvaluateCx<'_>, begin: &[usize], step: &[usize]) -> Vec<Array> {
    let x = cx.input(0);
    let from = |d: usize, i: usize| {
        let far = i.checked_sub(begin[d]).filter(|far| far.is_multiple_of(step[d]))?;
        Some(far / step[d]).filter(|&at| at < x.sizes()[d])
    };
    cx.output(|i| {
        let at: Option<Vec<usize>> = i.iter().enumerate().map(|(d, &i)| from(d, i)).collect();
        at.map_or(Scalar::zero(x.dtype()), |at| x.at(&at))
    })
}

/// Puts `x` back at the positions that a slice of a tensor shaped like `like` read, with zeros
/// elsewhere.
#[track_caller]
pub(super) fn unslice(x: &Tensor, like: &Tensor, begin: &[usize], step: &[usize]) -> Tensor {
    Tensor::apply_one(Unslice { begin: begin.to_vec(), step: step.to_vec() }, &[x, like])
}

impl Tensor {
    /// Adds `low[i]` zeros before, `high[i]` after and `interior[i]` between the elements of dim
    /// `i`.
    #[track_caller]
    pub fn pad(&self, low: &[usize], high: &[usize], interior: &[usize]) -> Tensor {
        let op = Pad { low: low.to_vec(), high: high.to_vec(), interior: interior.to_vec() };
        Tensor::apply_one(op, &[self])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Pad", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            let mut some = || (0..rank).map(|_| draw.below(3)).collect::<Vec<usize>>();
            let (low, high, interior) = (some(), some(), some());
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().pad(&low, &high, &interior)]
            })
        })
        .empty("x.pad([1], [2], [3])", "[0]", "zeros [3]", |x| x[0].pad(&[1], &[2], &[3])),
    ];
}
