//! Reductions: sums, means and extremes over some dims.

use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, ReduceKind, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, Result, Shape};

/// A reduction over `axes`, which are sorted and unique.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Reduce {
    kind: ReduceKind,
    axes: Vec<usize>,
    keep: bool,
}
crate::exported!(Reduce, 1..=1);

/// Resolves axes as users write them (negative from the end, empty for all), and sorts them.
pub(super) fn resolve_axes(x: &Tensor, axes: &[isize]) -> Result<Vec<usize>> {
    if axes.is_empty() {
        return Ok((0..x.rank()).collect());
    }
    let mut resolved =
        axes.iter().map(|&a| crate::graph::axis_in(a, x.rank())).collect::<Result<Vec<usize>>>()?;
    resolved.sort_unstable();
    if resolved.windows(2).any(|w| w[0] == w[1]) {
        return Err(Error::argument(format!("the axes {axes:?} contain a duplicate")));
    }
    Ok(resolved)
}

/// Checks that axes are sorted, unique and in range.
pub(super) fn check_axes(shape: &Shape, axes: &[usize]) -> Result<()> {
    match axes.is_sorted_by(|a, b| a < b) && axes.last().is_none_or(|&a| a < shape.rank()) {
        true => Ok(()),
        false => Err(Error::argument(format!("{axes:?} are not valid axes of {shape}"))),
    }
}

/// Returns the shape after reducing `axes`, which are removed or kept with size 1.
pub(super) fn reduced_shape(shape: &Shape, axes: &[usize], keep: bool) -> Shape {
    let dims = shape.iter().enumerate().filter_map(|(i, &d)| match axes.contains(&i) {
        true => keep.then_some(Dim::Known(1)),
        false => Some(d),
    });
    dims.collect::<Vec<Dim>>().into()
}

impl OpDef for Reduce {
    fn name(&self) -> &str {
        match self.kind {
            ReduceKind::Sum => "Sum",
            ReduceKind::Prod => "Prod",
            ReduceKind::Max => "Max",
            ReduceKind::Min => "Min",
            ReduceKind::ArgMax => "ArgMax",
            ReduceKind::ArgMin => "ArgMin",
            ReduceKind::Moments => "Moments",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        let adds = matches!(self.kind, ReduceKind::Sum | ReduceKind::Prod);
        if x.dtype == DType::Bool && !adds {
            return Err(Error::dtype("bool elements are not supported; cast them first"));
        }
        if self.kind == ReduceKind::Moments {
            return Err(Error::argument("moments are a separate operation"));
        }
        check_axes(&x.shape, &self.axes)?;
        let empty = self.axes.iter().any(|&a| x.shape[a].known() == Some(0));
        if empty && !adds {
            return Err(Error::shape(format!("{} is empty along the reduced axes", x.shape)));
        }
        let dtype = match self.kind {
            ReduceKind::ArgMax | ReduceKind::ArgMin => DType::I64,
            // Sums of small integers overflow their type quickly.
            _ if adds && !x.dtype.is_float() => DType::I64,
            _ => x.dtype,
        };
        Ok(vec![Spec { dtype, shape: reduced_shape(&x.shape, &self.axes, self.keep) }])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        match self.kind {
            ReduceKind::Sum | ReduceKind::Prod => Autocast::Wide,
            _ => Autocast::Widest,
        }
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let x = cx.input(0);
        let spread = |t: &Tensor| t.keep_axes(&self.axes, self.keep).broadcast_like(x);
        let dx = match self.kind {
            ReduceKind::Sum => spread(cx.dy()),
            ReduceKind::Max | ReduceKind::Min => {
                // Equal extremes share the gradient.
                let hit = x.optimization_barrier().equal(&spread(cx.output(0))).cast(x.dtype());
                let axes: Vec<isize> = self.axes.iter().map(|&a| a as isize).collect();
                &hit * spread(cx.dy()) / hit.sum_keep(&axes).broadcast_like(x)
            }
            ReduceKind::ArgMax | ReduceKind::ArgMin => return Ok(vec![None]),
            ReduceKind::Prod => spread(cx.dy()) * x.other_products(&self.axes),
            ReduceKind::Moments => {
                return Err(Error::new(ErrorKind::Gradient, "moments are a separate operation"));
            }
        };
        Ok(vec![Some(dx)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let reduced: Vec<bool> = (0..x.sizes.len()).map(|i| self.axes.contains(&i)).collect();
        let (dtype, sizes) = (cx.output_dtype(0), x.sizes.clone());
        let y = cx.reduce(self.kind, dtype, &sizes, &reduced, &[&x], |_, r| r[0]);
        let to = cx.output_sizes(0);
        Ok(vec![cx.reshape(&y[0], &to)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        let reduced = |group: &Vec<Vec<usize>>| {
            let values = || group.iter().map(|i| x.at(i));
            // Returns whether the second replaces the first as the extreme: the first of equals
            // stays, and so does a NaN.
            let replaces = |best: Scalar, v: Scalar| {
                let larger = matches!(self.kind, ReduceKind::Max | ReduceKind::ArgMax);
                match (best, v) {
                    (Scalar::Int(a), Scalar::Int(b)) => {
                        if larger {
                            b > a
                        } else {
                            b < a
                        }
                    }
                    (a, b) => {
                        let (a, b) = (a.as_f64(), b.as_f64());
                        !a.is_nan() && (b.is_nan() || if larger { b > a } else { b < a })
                    }
                }
            };
            let extreme = || {
                let all = values().enumerate();
                all.reduce(|best, v| if replaces(best.1, v.1) { v } else { best })
                    .expect("infer rejects empty reductions")
            };
            match self.kind {
                ReduceKind::Sum => {
                    let mut sum = cx.running_sum();
                    values().for_each(|v| sum.add(v));
                    sum.value(x.dtype())
                }
                ReduceKind::Prod if x.dtype().is_float() => {
                    Scalar::Float(values().map(Scalar::as_f64).product())
                }
                ReduceKind::Prod => {
                    Scalar::Int(values().map(Scalar::as_i64).fold(1, |a: i64, b| a.wrapping_mul(b)))
                }
                ReduceKind::Max | ReduceKind::Min => extreme().1,
                ReduceKind::ArgMax | ReduceKind::ArgMin => Scalar::Int(extreme().0 as i64),
                ReduceKind::Moments => {
                    unreachable!("infer rejects it: moments are a separate operation")
                }
            }
        };
        let values: Vec<Scalar> = groups(x.sizes(), &self.axes).map(|group| reduced(&group)).collect();
        Ok(vec![Array::from_values(cx.output_dtype(0), cx.output_sizes(0), &values)])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let mut x = cx.input(0);
        if matches!(self.kind, ReduceKind::Sum | ReduceKind::Prod) {
            x = cx.cast(&x, cx.output_dtype(0))?;
        }
        let op_type = match (self.kind, &self.axes[..]) {
            (ReduceKind::Sum, _) => "ReduceSum",
            (ReduceKind::Prod, _) => "ReduceProd",
            (ReduceKind::Max, _) => "ReduceMax",
            (ReduceKind::Min, _) => "ReduceMin",
            (ReduceKind::ArgMax, [axis]) => return Ok(vec![cx.arg_reduce("ArgMax", &x, *axis, self.keep)?]),
            (ReduceKind::ArgMin, [axis]) => return Ok(vec![cx.arg_reduce("ArgMin", &x, *axis, self.keep)?]),
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{} over {:?} has no ONNX form", self.name(), self.axes),
                ));
            }
        };
        Ok(vec![cx.reduce(op_type, &x, &self.axes, self.keep)?])
    }
}

/// Groups the element indices that a reduction over `axes` combines: one list per element of the
/// result, both in row-major order.
pub(super) fn groups(sizes: &[usize], axes: &[usize]) -> impl Iterator<Item = Vec<Vec<usize>>> {
    let only = |reduced: bool| {
        let size = |(d, &n): (usize, &usize)| if axes.contains(&d) == reduced { n } else { 1 };
        Indices::new(&sizes.iter().enumerate().map(size).collect::<Vec<usize>>())
    };
    let inside: Vec<Vec<usize>> = only(true).collect();
    only(false)
        .map(move |kept| inside.iter().map(|i| i.iter().zip(&kept).map(|(a, b)| a + b).collect()).collect())
}

impl Tensor {
    #[track_caller]
    pub(crate) fn reduce(&self, kind: ReduceKind, axes: &[isize], keep: bool) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match resolve_axes(self, axes) {
            Ok(axes) => Tensor::apply_one(Reduce { kind, axes, keep }, &[self]),
            Err(e) => self.fail("Reduce", e),
        }
    }

    /// Returns the sum of all elements. Integers and bool are summed in i64.
    #[track_caller]
    pub fn sum(&self) -> Tensor {
        self.reduce(ReduceKind::Sum, &[], false)
    }

    /// Returns the sum over `axes`, which are removed. Integers and bool are summed in i64.
    #[track_caller]
    pub fn sum_axes(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Sum, axes, false)
    }

    /// Returns the sum over `axes`, which are kept with size 1.
    #[track_caller]
    pub fn sum_keep(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Sum, axes, true)
    }

    /// Returns the mean of all elements, which must be floats.
    #[track_caller]
    pub fn mean(&self) -> Tensor {
        self.mean_of(&[], false)
    }

    /// Returns the mean over `axes`, which are removed.
    #[track_caller]
    pub fn mean_axes(&self, axes: &[isize]) -> Tensor {
        self.mean_of(axes, false)
    }

    /// Returns the mean over `axes`, which are kept with size 1.
    #[track_caller]
    pub fn mean_keep(&self, axes: &[isize]) -> Tensor {
        self.mean_of(axes, true)
    }

    /// Divides a sum by the number of elements that were added.
    #[track_caller]
    fn mean_of(&self, axes: &[isize], keep: bool) -> Tensor {
        if !self.is_poison() && !self.dtype().is_float() {
            let why = format!("the mean requires floating-point elements, got {}", self.dtype());
            return self.fail("Mean", Error::dtype(why).note("cast to f32 first"));
        }
        let sum = self.reduce(ReduceKind::Sum, axes, keep);
        &sum / self.count_per(&sum)
    }

    /// Returns the maximum over `axes` (empty: all), which are removed.
    #[track_caller]
    pub fn max_axes(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Max, axes, false)
    }

    /// Returns the maximum over `axes`, which are kept with size 1.
    #[track_caller]
    pub fn max_keep(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Max, axes, true)
    }

    /// Returns the minimum over `axes` (empty: all), which are removed.
    #[track_caller]
    pub fn min_axes(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Min, axes, false)
    }

    /// Returns the minimum over `axes`, which are kept with size 1.
    #[track_caller]
    pub fn min_keep(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Min, axes, true)
    }

    /// Returns the index of the maximum along `axis`, as i64; the first of equal ones.
    #[track_caller]
    pub fn argmax(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMax, &[axis], false)
    }

    /// Returns the index of the minimum along `axis`, as i64; the first of equal ones.
    #[track_caller]
    pub fn argmin(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMin, &[axis], false)
    }

    /// Restores the reduced axes of a tensor as dims of size 1, unless they were kept.
    #[track_caller]
    pub(super) fn keep_axes(&self, axes: &[usize], kept: bool) -> Tensor {
        axes.iter().filter(|_| !kept).fold(self.clone(), |t, &a| t.expand_dims(a as isize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    const INDEX: Gradient = Never("an index, not a value");

    fn along(name: &'static str, op: fn(&Tensor, isize) -> Tensor) -> Case {
        case(name, INDEX, move |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.solid(rank), draw.below(rank) as isize);
            // Halves are often equal, to test that the first of them is chosen.
            Trial::new(vec![Input::floats(draw, sizes, Halves)], move |x| vec![op(&x[0], axis)])
        })
    }

    cases![
        reduction("Sum", Twice, Any, true, |x, axes| {
            vec![x.square().sum_axes(axes), x.sum_keep(axes), x.sum()]
        })
        .empty("x.sum()", "[0, 3]", "zeros []", |x| x[0].sum())
        .empty("x.sum_axes([0])", "[0, 3]", "zeros [3]", |x| x[0].sum_axes(&[0]))
        .empty("x.sum_axes([1])", "[0, 3]", "empty [0]", |x| x[0].sum_axes(&[1])),
        reduction("Mean", Twice, Any, false, |x, axes| vec![
            x.square().mean_axes(axes),
            x.exp().mean_keep(axes)
        ])
        .empty("x.mean()", "[0, 3]", "error: the mean of an empty tensor ([0, 3]) is undefined", |x| x[0]
            .mean())
        .empty(
            "x.mean_axes([0])",
            "[0, 3]",
            "error: the mean of an empty tensor ([0, 3]) is undefined",
            |x| x[0].mean_axes(&[0])
        )
        .empty("x.mean_axes([1])", "[0, 3]", "empty [0]", |x| x[0].mean_axes(&[1]))
        .empty("x.global_average_pool()", "[0, 4, 4, 3]", "empty [0, 3]", |x| x[0].global_average_pool())
        .empty(
            "x.global_average_pool()",
            "[2, 0, 4, 3]",
            "error: the mean of an empty tensor ([2, 0, 4, 3]) is undefined",
            |x| x[0].global_average_pool()
        ),
        reduction("Max", Twice, Apart, false, |x, axes| vec![x.max_axes(axes), x.exp().max_keep(axes)])
            .empty("x.max_axes([0])", "[0, 3]", "error: [0, 3] is empty along the reduced axes", |x| x[0]
                .max_axes(&[0]))
            .empty("x.max_axes([1])", "[0, 3]", "empty [0]", |x| x[0].max_axes(&[1])),
        reduction("Min", Twice, Apart, false, |x, axes| vec![x.min_axes(axes), x.exp().min_keep(axes)])
            .empty("x.min_axes([0])", "[0, 3]", "error: [0, 3] is empty along the reduced axes", |x| x[0]
                .min_axes(&[0]))
            .empty("x.min_axes([1])", "[0, 3]", "empty [0]", |x| x[0].min_axes(&[1])),
        reduction("Max of equals", Never("equal extremes are a kink"), Halves, false, |x, axes| {
            vec![x.max_axes(axes), x.min_axes(axes)]
        }),
        along("ArgMax", Tensor::argmax)
            .empty("x.argmax(0)", "[0, 3]", "error: [0, 3] is empty along the reduced axes", |x| x[0]
                .argmax(0))
            .empty("x.argmax(1)", "[0, 3]", "empty [0]", |x| x[0].argmax(1)),
        along("ArgMin", Tensor::argmin)
            .empty("x.argmin(0)", "[0, 3]", "error: [0, 3] is empty along the reduced axes", |x| x[0]
                .argmin(0))
            .empty("x.argmin(1)", "[0, 3]", "empty [0]", |x| x[0].argmin(1)),
        // Two reductions over one space, which share a pass, and a reader of both.
        reduction("Sums that share a pass", Twice, Any, true, |x, axes| {
            let (a, b) = (x.square().sum_keep(axes), x.exp().sum_keep(axes));
            vec![(x * &a) + &b, a, b]
        }),
    ];
}
