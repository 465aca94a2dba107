//! Broadcasting a tensor to another's shape, and its transpose: summing back. Both use only the
//! shape of the other tensor, so that gradients work with unknown dims and keep no values alive.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, ReduceKind, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, HostTensor, Result};

/// Input 0 broadcast to the shape of input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct BroadcastLike;
crate::exported!(BroadcastLike, 2..=2);

impl OpDef for BroadcastLike {
    fn name(&self) -> &str {
        "BroadcastLike"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, like) = (&inputs[0], &inputs[1]);
        let shape = x.shape.broadcast(&like.shape)?;
        if shape.known().is_some() && like.shape.known().is_some() && shape != like.shape {
            return Err(Error::shape(format!("{} cannot be broadcast to {}", x.shape, like.shape)));
        }
        Ok(vec![Spec { dtype: x.dtype, shape: like.shape.clone() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().sum_like(cx.input(0))), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).broadcast_to(&cx.output_sizes(0))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| cx.input(0).broadcast_at(i)))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (x, like) = (cx.input(0), cx.input(1));
        let sizes = cx.shape_of(&like)?;
        Ok(vec![cx.node("Expand", &[&x, &sizes], &[], x.dtype(), cx.output_shape(0).clone())?])
    }
}

/// The input broadcast to these sizes; `None` keeps a dim as it is.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct BroadcastTo(Vec<Option<usize>>);
crate::exported!(BroadcastTo, 1..=1);

impl OpDef for BroadcastTo {
    fn name(&self) -> &str {
        "BroadcastTo"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        let new = self.0.len().checked_sub(x.shape.rank()).unwrap_or(usize::MAX);
        let fits = |(i, &to): (usize, &Option<usize>)| match (i.checked_sub(new).map(|d| x.shape[d]), to) {
            (Some(own), None) => Some(own),
            (Some(Dim::Known(n)), Some(to)) if n != to && n != 1 => None,
            (_, to) => to.map(Dim::Known),
        };
        let dims = self.0.iter().enumerate().map(fits).collect::<Option<Vec<Dim>>>();
        match dims.filter(|d| d.len() >= x.shape.rank()) {
            Some(dims) => Ok(vec![Spec { dtype: x.dtype, shape: dims.into() }]),
            None => {
                let to: Vec<String> =
                    self.0.iter().map(|n| n.map_or("-1".into(), |n| n.to_string())).collect();
                Err(Error::shape(format!("{} cannot be broadcast to [{}]", x.shape, to.join(", "))))
            }
        }
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().sum_like(cx.input(0)))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0).broadcast_to(&cx.output_sizes(0))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| cx.input(0).broadcast_at(i)))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        // A size of 1 keeps that of the input.
        let sizes: Vec<i64> = self.0.iter().map(|n| n.map_or(1, |n| n as i64)).collect();
        let sizes = cx.ints(&sizes)?;
        Ok(vec![cx.node("Expand", &[&x, &sizes], &[], x.dtype(), cx.output_shape(0).clone())?])
    }
}

/// Input 0 summed over the dims in which it is larger than input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct SumLike;
crate::exported!(SumLike, 2..=2);

impl OpDef for SumLike {
    fn name(&self) -> &str {
        "SumLike"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, like) = (&inputs[0], &inputs[1]);
        if like.shape.rank() > x.shape.rank() {
            return Err(Error::shape(format!("{} cannot be summed to {}", x.shape, like.shape)));
        }
        let whole = x.shape.broadcast(&like.shape)?;
        if whole.known().zip(x.shape.known()).is_some_and(|(whole, own)| whole != own) {
            return Err(Error::shape(format!("{} cannot be summed to {}", x.shape, like.shape)));
        }
        Ok(vec![Spec { dtype: x.dtype, shape: like.shape.clone() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 1
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().broadcast_like(cx.input(0))), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let missing = x.sizes.len() - to.len();
        let reduced: Vec<bool> = x
            .sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| i < missing || (to[i - missing] == 1 && n != 1))
            .collect();
        if !reduced.contains(&true) {
            return Ok(vec![x]);
        }
        let sums = cx.reduce(ReduceKind::Sum, x.dtype, &x.sizes.clone(), &reduced, &[&x], |_, r| r[0]);
        Ok(vec![cx.reshape(&sums[0], &to)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, to) = (cx.input(0), cx.output_sizes(0));
        let mut sums = cx.running_sums(x.dtype(), to);
        for i in Indices::new(x.sizes()) {
            let aligned = &i[i.len() - to.len()..];
            let at: Vec<usize> = aligned.iter().zip(to).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
            sums.add(&at, x.at(&i));
        }
        Ok(vec![sums.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (x, to) = (cx.input(0), cx.output_shape(0).clone());
        let missing = x.shape().rank() - to.rank();
        let mut axes = Vec::new();
        for (i, &own) in x.shape().iter().enumerate() {
            match (i.checked_sub(missing).map(|d| to[d]), own) {
                (None, _) => axes.push(i),
                (Some(to), own) if to == own => {}
                (Some(Dim::Known(1)), _) => axes.push(i),
                (Some(to), own) if to.known().is_some() && own.known().is_some() => {}
                _ => {
                    let why = format!("the dims in which {} exceeds {to} must be known", x.shape());
                    return Err(Error::new(ErrorKind::Unsupported, why));
                }
            }
        }
        let sums = cx.reduce("ReduceSum", &x, &axes, true)?;
        match missing {
            0 => Ok(vec![sums]),
            _ => Ok(vec![cx.reshape(&sums, &to, &[&cx.input(1)])?]),
        }
    }
}

/// The number of elements of input 0 per element of input 1: a scalar that is known once shapes
/// are.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct CountRatio(DType);
crate::exported!(CountRatio, 2..=2);

impl OpDef for CountRatio {
    fn name(&self) -> &str {
        "Mean"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        // A mean over no elements is fine if the result is empty: only a requested mean must exist.
        let [whole, parts] = [0, 1].map(|i| inputs[i].shape.element_count().known());
        if whole == Some(0) && parts.is_some_and(|n| n > 0) {
            return Err(Error::shape(format!(
                "the mean of an empty tensor ({}) is undefined",
                inputs[0].shape
            )));
        }
        Ok(vec![Spec::new(self.0, [])])
    }

    fn shape_only(&self, _: usize) -> bool {
        true
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None, None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let count = |sizes: &[usize]| sizes.iter().map(|&n| n as f64).product::<f64>();
        let ratio = count(cx.input_sizes(0)) / count(cx.input_sizes(1)).max(1.0);
        Ok(vec![cx.constant(HostTensor::from_f64(self.0, [], &[ratio])?)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let count = |i: usize| cx.input_sizes(i).iter().product::<usize>() as f64;
        Ok(cx.float_output(|_| count(0) / count(1).max(1.0)))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let [whole, part] = [0, 1].map(|i| cx.input(i));
        let (mut left, mut ratio) = (part.shape().to_vec(), Vec::new());
        for &dim in whole.shape().iter() {
            match left.iter().position(|&d| d == dim) {
                Some(at) => drop(left.swap_remove(at)),
                None => ratio.push(dim),
            }
        }
        let count = |dims: &[Dim]| Dim::product(dims).known().map(|n| n as f64);
        if let (Some(whole), Some(part)) = (count(&ratio), count(&left)) {
            return Ok(vec![cx.scalar(whole / part.max(1.0), self.0)?]);
        }
        let mut size = |x: &Value| {
            let size = cx.node("Size", &[&cx.stored(x)], &[], DType::I64, [])?;
            cx.cast(&size, self.0)
        };
        let (whole, part) = (size(&whole)?, size(&part)?);
        let one = cx.scalar(1.0, self.0)?;
        let part = cx.elementwise("Max", &[&part, &one], &[], self.0)?;
        Ok(vec![cx.elementwise("Div", &[&whole, &part], &[], self.0)?])
    }
}

impl Tensor {
    /// Broadcasts this tensor to the shape of `like`.
    #[track_caller]
    pub fn broadcast_like(&self, like: &Tensor) -> Tensor {
        if self.shape() == like.shape() {
            self.clone()
        } else {
            Tensor::apply_one(BroadcastLike, &[self, like])
        }
    }

    /// Broadcasts this tensor to `sizes`, aligned at the last dim: its own sizes must be equal to
    /// them or 1. A size of -1 keeps the tensor's own.
    #[track_caller]
    #[doc(alias = "expand")]
    pub fn broadcast_to(&self, sizes: &[isize]) -> Tensor {
        let target = |&n: &isize| match n {
            -1 => Ok(None),
            n => usize::try_from(n).map(Some),
        };
        match sizes.iter().map(target).collect::<std::result::Result<Vec<_>, _>>() {
            Ok(sizes) => Tensor::apply_one(BroadcastTo(sizes), &[self]),
            Err(_) => {
                self.fail("BroadcastTo", Error::argument(format!("{sizes:?} contains an invalid size")))
            }
        }
    }

    /// Sums this tensor over the dims in which it is larger than `like`: the transpose of
    /// broadcasting.
    #[track_caller]
    pub fn sum_like(&self, like: &Tensor) -> Tensor {
        if self.shape() == like.shape() {
            return self.clone();
        }
        // Move a factor that is constant over the sum out of it: this saves multiplications, and
        // the sum of the other factor is often needed anyway, as in the gradients of normalization.
        if let Some([a, b]) = self.factors() {
            if a.shape() == self.shape() && b.shape() == like.shape() {
                return a.sum_like(like) * b;
            }
            if b.shape() == self.shape() && a.shape() == like.shape() {
                return b.sum_like(like) * a;
            }
        }
        Tensor::apply_one(SumLike, &[self, like])
    }

    /// Returns the number of elements of this tensor per element of `part`, in the type of `part`:
    /// the divisor of means. Zero is an error.
    #[track_caller]
    pub(crate) fn count_per(&self, part: &Tensor) -> Tensor {
        Tensor::apply_one(CountRatio(part.dtype()), &[self, part])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("BroadcastLike", Twice, |draw| {
            let rank = draw.below(4);
            let full = draw.sizes(rank);
            let sizes = draw.broadcasting(&full);
            let inputs = vec![Input::floats(draw, sizes, Any), Input::floats(draw, full, Any)];
            Trial::new(inputs, |x| vec![x[0].square().broadcast_like(&x[1])])
        })
        .empty("x.broadcast_like(y)", "[1, 3], [0, 3]", "empty [0, 3]", |x| x[0].broadcast_like(&x[1]))
        .empty(
            "x.broadcast_like(y)",
            "[0, 3], [2, 3]",
            "error: shapes [0, 3] and [2, 3] cannot be broadcast together",
            |x| x[0].broadcast_like(&x[1])
        ),
        case("BroadcastTo", Twice, |draw| {
            let rank = draw.below(4);
            let full = draw.sizes(rank);
            let sizes = draw.broadcasting(&full);
            let new = full.len() - sizes.len();
            let to: Vec<isize> = (0..rank)
                .map(|i| {
                    if i >= new && sizes[i - new] == full[i] && draw.below(2) == 1 {
                        -1
                    } else {
                        full[i] as isize
                    }
                })
                .collect();
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].square().broadcast_to(&to)])
        })
        .empty("x.broadcast_to([0, 3])", "[1, 3]", "empty [0, 3]", |x| x[0].broadcast_to(&[0, 3]))
        .empty(
            "x.broadcast_to([2, 3])",
            "[0, 3]",
            "error: [0, 3] cannot be broadcast to [2, 3]",
            |x| { x[0].broadcast_to(&[2, 3]) }
        ),
        case("SumLike", Twice, |draw| {
            let rank = draw.below(4);
            let full = draw.sizes(rank);
            let sizes = draw.broadcasting(&full);
            let inputs = vec![Input::floats(draw, full, Any), Input::floats(draw, sizes, Any)];
            Trial::new(inputs, |x| vec![x[0].square().sum_like(&x[1])])
        })
        .empty("x.sum_like(y)", "[0, 3], [3]", "zeros [3]", |x| x[0].sum_like(&x[1]))
        .empty("x.sum_like(y)", "[0, 3], [1, 3]", "zeros [1, 3]", |x| x[0].sum_like(&x[1])),
    ];
}
