//! Repetition of a tensor along its dims.

use super::composed;
use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{LowerCx, ReduceKind, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{Dim, Error, Result};

/// Repeats dim `i` `.0[i]` times.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Tile(Vec<usize>);
crate::exported!(Tile, 1..=1);

/// Returns every dim of `sizes`, preceded by its number of repeats.
fn with_repeats(repeats: &[usize], sizes: &[usize]) -> Vec<usize> {
    repeats.iter().zip(sizes).flat_map(|(&r, &n)| [r, n]).collect()
}

impl OpDef for Tile {
    fn name(&self) -> &str {
        "Tile"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        if self.0.len() != x.shape.rank() {
            return Err(Error::argument(format!("{} needs a count for each of its dims", x.shape)));
        }
        let dims = x.shape.iter().zip(&self.0).map(|(&d, &n)| match Dim::product(&[d, Dim::Known(n)]) {
            Dim::Unknown(_) if d.known().is_some() => {
                Err(Error::shape(format!("{} repeated {:?} times is too large", x.shape, self.0)))
            }
            d => Ok(d),
        });
        Ok(vec![Spec { dtype: x.dtype, shape: dims.collect::<Result<Vec<Dim>>>()?.into() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(Tensor::apply_one(Untile(self.0.clone()), &[cx.dy(), cx.input(0)]))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let ones = cx.reshape(&x, &with_repeats(&vec![1; self.0.len()], &x.sizes));
        let repeated = ones.broadcast_to(&with_repeats(&self.0, &x.sizes));
        Ok(vec![cx.reshape(&repeated, &to)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        Ok(cx.output(|i| x.at(&i.iter().zip(x.sizes()).map(|(&i, &n)| i % n).collect::<Vec<usize>>())))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let counts: Vec<i64> = self.0.iter().map(|&n| n as i64).collect();
        let counts = cx.ints(&cx.per_stored_axis(&x, &counts))?;
        let dims = cx.per_stored_axis(&x, cx.output_shape(0));
        let y = cx.node("Tile", &[&cx.stored(&x), &counts], &[], x.dtype(), dims)?;
        Ok(vec![cx.restored(&y, &x)])
    }
}

/// The sum of all repeats in input 0, in the shape of input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Untile(Vec<usize>);
crate::exported!(Untile, 2..=2);

impl OpDef for Untile {
    fn name(&self) -> &str {
        "Untile"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let whole = Spec { dtype: inputs[0].dtype, shape: inputs[1].shape.clone() };
        super::same_spec(&inputs[0], &Tile(self.0.clone()).infer(std::slice::from_ref(&whole))?[0])?;
        Ok(vec![whole])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().tile(&self.0)), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let sizes = with_repeats(&self.0, &to);
        let repeats = cx.reshape(&x, &sizes);
        let reduced: Vec<bool> = (0..sizes.len()).map(|i| i % 2 == 0).collect();
        Ok(cx.reduce(ReduceKind::Sum, x.dtype, &sizes, &reduced, &[&repeats], |_, r| r[0]))
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let mut sums = cx.running_sums(x.dtype(), to);
        for i in Indices::new(x.sizes()) {
            sums.add(&i.iter().zip(to).map(|(&i, &n)| i % n).collect::<Vec<usize>>(), x.at(&i));
        }
        Ok(vec![sums.array()])
    }
}

impl Tensor {
    /// Repeats the whole tensor `counts[i]` times along each dim: `[1, 2]` twice is `[1, 2, 1, 2]`.
    #[track_caller]
    pub fn tile(&self, counts: &[usize]) -> Tensor {
        Tensor::apply_one(Tile(counts.to_vec()), &[self])
    }

    /// Repeats every index of `axis` `count` times: `[1, 2]` twice is `[1, 1, 2, 2]`.
    #[track_caller]
    pub fn repeat(&self, count: usize, axis: isize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let axis = match axis_in(axis, self.rank()) {
            Ok(axis) => axis,
            Err(e) => return self.fail("Repeat", e),
        };
        composed(self, "Repeat", Location::caller(), || {
            let expanded = self.expand_dims(axis as isize + 1);
            let counts: Vec<usize> =
                (0..=self.rank()).map(|i| if i == axis + 1 { count } else { 1 }).collect();
            expanded.tile(&counts).merge_dims(axis as isize, 2)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Tile", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            let counts: Vec<usize> = (0..rank).map(|_| draw.pick(&[1, 2, 3, 0])).collect();
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].square().tile(&counts)])
        })
        .empty("x.tile([2, 2])", "[0, 3]", "empty [0, 6]", |x| x[0].tile(&[2, 2]))
        .empty("x.tile([2, 0])", "[1, 3]", "empty [2, 0]", |x| x[0].tile(&[2, 0])),
        case("Repeat", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis, count) = (draw.solid(rank), draw.below(rank) as isize, draw.between(1, 3));
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().repeat(count, axis)]
            })
        })
        .empty("x.repeat(2, 0)", "[0, 3]", "empty [0, 3]", |x| x[0].repeat(2, 0)),
    ];
}
