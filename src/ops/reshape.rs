//! Reshaping: the same elements with another shape.

use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// One dim of the target shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Target {
    /// This size.
    Size(usize),
    /// The size of dim `.0` of the input.
    Same(usize),
    /// Inferred from the other dims (-1).
    Rest,
}

/// The input with these dims.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Reshape(Vec<Target>);
crate::exported!(Reshape, 1..=1);

impl OpDef for Reshape {
    fn name(&self) -> &str {
        "Reshape"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let from = &inputs[0].shape;
        let mut rest: Vec<Dim> = from.to_vec();
        let mut given = 1usize;
        let once = |i: usize| i < rest.len() && self.0.iter().filter(|&&t| t == Target::Same(i)).count() == 1;
        let valid = |t: &Target| !matches!(t, Target::Same(i) if !once(*i));
        if !self.0.iter().all(valid) || self.0.iter().filter(|&&t| t == Target::Rest).count() > 1 {
            return Err(Error::argument(format!("{from} cannot be reshaped to {:?}", self.0)));
        }
        for t in &self.0 {
            match *t {
                Target::Same(i) => rest[i] = Dim::Known(1),
                Target::Size(n) => given = given.saturating_mul(n),
                Target::Rest => {}
            }
        }
        let target = || {
            self.0
                .iter()
                .map(|t| match t {
                    Target::Size(n) => n.to_string(),
                    Target::Same(_) => "=".into(),
                    Target::Rest => "-1".into(),
                })
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mismatch = || Error::shape(format!("{from} cannot be reshaped to [{}]", target()));
        let wants_rest = self.0.contains(&Target::Rest);
        let left = match Dim::product(&rest) {
            Dim::Known(n) if wants_rest && given > 0 && n % given == 0 => Dim::Known(n / given),
            Dim::Known(n) if !wants_rest && n == given => Dim::Known(1),
            Dim::Known(_) => return Err(mismatch()),
            Dim::Unknown(_) => {
                // Known sizes cancel, so that [batch, 7, 7, 32] as [-1, 1568] has the symbolic
                // batch size again.
                let known = rest.iter().filter_map(|d| d.known()).fold(1, usize::saturating_mul);
                let unknown: Vec<Dim> = rest.iter().copied().filter(|d| d.known().is_none()).collect();
                match unknown.as_slice() {
                    [one] if known == given => *one,
                    _ => Dim::derived("rest", &unknown, &[known, given]),
                }
            }
        };
        let dims = self.0.iter().map(|t| match *t {
            Target::Size(n) => Dim::Known(n),
            Target::Same(i) => from[i],
            Target::Rest => left,
        });
        Ok(vec![Spec { dtype: inputs[0].dtype, shape: dims.collect::<Vec<_>>().into() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().reshape_like(cx.input(0)))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        Ok(vec![cx.reshape(&x, &to)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).reshaped(cx.output_sizes(0))])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (x, shape) = (cx.input(0), cx.output_shape(0).clone());
        Ok(vec![cx.reshape(&x, &shape, &[])?])
    }
}

/// Input 0 with the shape of input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct ReshapeLike;
crate::exported!(ReshapeLike, 2..=2);

impl OpDef for ReshapeLike {
    fn name(&self) -> &str {
        "ReshapeLike"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, like) = (&inputs[0].shape, &inputs[1].shape);
        match (x.element_count(), like.element_count()) {
            (Dim::Known(a), Dim::Known(b)) if a != b => {
                Err(Error::shape(format!("{x} cannot be reshaped to {like}")))
            }
            _ => Ok(vec![Spec { dtype: inputs[0].dtype, shape: like.clone() }]),
        }
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().reshape_like(cx.input(0))), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        Ok(vec![cx.reshape(&x, &to)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).reshaped(cx.output_sizes(0))])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (x, shape) = (cx.input(0), cx.output_shape(0).clone());
        Ok(vec![cx.reshape(&x, &shape, &[&cx.input(1)])?])
    }
}

impl Tensor {
    /// Reshapes to `sizes` in row-major order; one of them may be -1, which is inferred.
    #[track_caller]
    pub fn reshape(&self, sizes: &[isize]) -> Tensor {
        let targets = sizes.iter().map(|&n| match n {
            -1 => Ok(Target::Rest),
            n => usize::try_from(n).map(Target::Size),
        });
        match targets.collect::<Result<Vec<Target>, _>>() {
            Ok(t) if t.iter().filter(|&&t| t == Target::Rest).count() <= 1 => {
                Tensor::apply_one(Reshape(t), &[self])
            }
            _ => {
                self.fail("Reshape", Error::argument(format!("invalid sizes {sizes:?} (-1 may occur once)")))
            }
        }
    }

    /// Reshapes to dims that are given, the input's, or inferred.
    #[track_caller]
    pub(crate) fn reshape_to(&self, targets: Vec<Target>) -> Tensor {
        Tensor::apply_one(Reshape(targets), &[self])
    }

    /// Reshapes to the shape of `like`.
    #[track_caller]
    pub fn reshape_like(&self, like: &Tensor) -> Tensor {
        if self.shape() == like.shape() {
            self.clone()
        } else {
            Tensor::apply_one(ReshapeLike, &[self, like])
        }
    }

    /// Flattens all dims from `axis` on into one.
    #[track_caller]
    pub fn flatten(&self, axis: usize) -> Tensor {
        if axis > self.rank() {
            return self.fail(
                "Flatten",
                Error::shape(format!("axis {axis} is out of range for a tensor of rank {}", self.rank())),
            );
        }
        let targets = (0..axis).map(Target::Same).chain([Target::Rest]).collect();
        Tensor::apply_one(Reshape(targets), &[self])
    }

    /// Inserts a dim of size 1 at `axis`.
    #[track_caller]
    pub fn expand_dims(&self, axis: isize) -> Tensor {
        match axis_in(axis, self.rank() + 1) {
            Ok(at) => {
                let before = (0..at).map(Target::Same);
                let after = (at..self.rank()).map(Target::Same);
                Tensor::apply_one(Reshape(before.chain([Target::Size(1)]).chain(after).collect()), &[self])
            }
            Err(e) => self.fail("ExpandDims", e),
        }
    }

    /// Removes the dim of size 1 at `axis`.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        let at = match axis_in(axis, self.rank()) {
            Ok(at) => at,
            Err(e) => return self.fail("Squeeze", e),
        };
        if self.shape()[at].known().is_some_and(|n| n != 1) {
            let e = Error::shape(format!("axis {axis} of {} does not have size 1", self.shape()));
            return self.fail("Squeeze", e);
        }
        let targets = (0..self.rank()).filter(|&i| i != at).map(Target::Same).collect();
        Tensor::apply_one(Reshape(targets), &[self])
    }

    /// Splits the dim at `axis` into several, in row-major order; one of the sizes may be -1, which
    /// is inferred.
    #[track_caller]
    pub fn split_dim(&self, axis: isize, sizes: &[isize]) -> Tensor {
        let at = match axis_in(axis, self.rank()) {
            _ if self.is_poison() => return self.clone(),
            Ok(at) => at,
            Err(e) => return self.fail("SplitDim", e),
        };
        let parts = sizes.iter().map(|&n| usize::try_from(n).map_or(Target::Rest, Target::Size));
        let parts: Vec<Target> = parts.collect();
        if sizes.iter().any(|&n| n < -1) || parts.iter().filter(|&&t| t == Target::Rest).count() > 1 {
            let e = Error::argument(format!("invalid sizes {sizes:?} (-1 may occur once)"));
            return self.fail("SplitDim", e);
        }
        let (before, after) = ((0..at).map(Target::Same), (at + 1..self.rank()).map(Target::Same));
        Tensor::apply_one(Reshape(before.chain(parts).chain(after).collect()), &[self])
    }

    /// Merges `count` adjacent dims, starting at `axis`, into one.
    #[track_caller]
    pub fn merge_dims(&self, axis: isize, count: usize) -> Tensor {
        let at = match axis_in(axis, self.rank()) {
            _ if self.is_poison() => return self.clone(),
            Ok(at) if count > 0 && at + count <= self.rank() => at,
            Ok(at) => {
                let e = format!("{count} dims from axis {at} exceed a tensor of rank {}", self.rank());
                return self.fail("MergeDims", Error::shape(e));
            }
            Err(e) => return self.fail("MergeDims", e),
        };
        let (before, after) = ((0..at).map(Target::Same), (at + count..self.rank()).map(Target::Same));
        Tensor::apply_one(Reshape(before.chain([Target::Rest]).chain(after).collect()), &[self])
    }

    /// Flattens all dims but the last into one.
    #[track_caller]
    pub(super) fn as_matrix(&self) -> Tensor {
        let last = self.rank().saturating_sub(1);
        if self.rank() == 2 {
            self.clone()
        } else {
            Tensor::apply_one(Reshape(vec![Target::Rest, Target::Same(last)]), &[self])
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Reshape", Twice, |draw| {
            let rank = draw.between(1, 4);
            let sizes = draw.solid(rank);
            // The product of some dims, then the rest; includes dims of size 1.
            let cut = draw.between(0, rank);
            let front = sizes[..cut].iter().product::<usize>() as isize;
            let target: Vec<isize> = match draw.below(3) {
                0 => vec![-1],
                1 => vec![front, 1, -1],
                _ => vec![1, front, sizes[cut..].iter().product::<usize>() as isize],
            };
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].reshape(&target).square()])
        })
        .empty("x.reshape([3, 0])", "[0, 3]", "empty [3, 0]", |x| x[0].reshape(&[3, 0]))
        .empty("x.reshape([-1, 3])", "[0, 3]", "empty [0, 3]", |x| x[0].reshape(&[-1, 3]))
        .empty("x.reshape([-1, 0])", "[0, 3]", "error: [0, 3] cannot be reshaped to [-1, 0]", |x| x[0]
            .reshape(&[-1, 0]))
        .empty("x.reshape([1])", "[0, 3]", "error: [0, 3] cannot be reshaped to [1]", |x| x[0].reshape(&[1]))
        .empty("x.flatten(1)", "[0, 2, 3]", "empty [0, 6]", |x| x[0].flatten(1))
        .empty("x.flatten(1)", "[2, 0, 3]", "empty [2, 0]", |x| x[0].flatten(1)),
        case("Flatten", Twice, |draw| {
            let rank = draw.between(1, 4);
            let axis = draw.between(0, rank);
            let sizes = draw.solid(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].flatten(axis).square()])
        }),
        case("Dims split and merged", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (mut sizes, axis) = (draw.solid(rank), draw.below(rank));
            sizes[axis] *= 3;
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                let split = x[0].split_dim(axis as isize, &[-1, 3]);
                vec![split.square(), split.sum_axes(&[0]), split.merge_dims(axis as isize, 2).square()]
            })
        }),
        case("Dims of size 1", Twice, |draw| {
            let rank = draw.below(4);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank + 1) as isize);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                let more = x[0].square().expand_dims(axis);
                vec![more.squeeze(axis).exp(), more]
            })
        }),
        case("ReshapeLike", Twice, |draw| {
            let rank = draw.between(1, 3);
            let sizes = draw.sizes(rank);
            let flat = vec![sizes.iter().product::<usize>()];
            let inputs = vec![Input::floats(draw, sizes, Any), Input::floats(draw, flat, Any)];
            Trial::new(inputs, |x| vec![x[0].square().reshape_like(&x[1])])
        })
        .empty("x.reshape_like(y)", "[0, 3], [7, 0]", "empty [7, 0]", |x| x[0].reshape_like(&x[1]))
        .empty("x.reshape_like(y)", "[0, 3], [1]", "error: [0, 3] cannot be reshaped to [1]", |x| x[0]
            .reshape_like(&x[1])),
    ];
}
