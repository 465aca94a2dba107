//! Softmax, and the losses based on it.

use super::composed;
use super::loss::wide;
use super::reduce::resolve_axes;
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{Binary, Class, ExprBuilder, LowerCx, ReduceKind, Reg, Unary, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, Result};

/// The loss where the label is a class, NaN elsewhere: an invalid label must not train silently.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct CheckLabels {
    classes: usize,
}
crate::exported!(CheckLabels, 2..=2);

impl OpDef for CheckLabels {
    fn name(&self) -> &str {
        "CheckLabels"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (loss, labels) = (&inputs[0], &inputs[1]);
        super::float_input(loss)?;
        if !labels.dtype.is_int() {
            return Err(Error::dtype(format!("expected integer labels, got {}", labels.dtype)));
        }
        if loss.shape.broadcast(&labels.shape)?.rank() != labels.shape.rank() {
            return Err(Error::shape(format!(
                "the shapes of losses {} and labels {} differ",
                loss.shape, labels.shape
            )));
        }
        if let (Some(a), Some(b)) = (loss.shape.known(), labels.shape.known())
            && a != b
        {
            return Err(Error::shape(format!(
                "there are logits for {} examples, but labels for {}",
                loss.shape, labels.shape
            )));
        }
        Ok(vec![loss.clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().clone()), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (loss, labels) = (cx.input(0), cx.input(1));
        let class = Class::from_dtype(loss.dtype);
        Ok(vec![cx.map(&[&loss, &labels], |e, r| {
            let (zero, classes) = (e.constant(0.0, Class::I64), e.constant(self.classes as f64, Class::I64));
            let low = e.binary(Binary::Ge, r[1], zero);
            let high = e.binary(Binary::Lt, r[1], classes);
            let in_range = e.binary(Binary::And, low, high);
            let in_range = e.cast(class, in_range);
            let nan = e.constant(f64::NAN, class);
            e.select(in_range, r[0], nan)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (loss, labels) = (cx.input(0), cx.input(1));
        let is_class = |label: i64| (0..self.classes as i64).contains(&label);
        Ok(cx.float_output(|i| if is_class(labels.int(i)) { loss.float(i) } else { f64::NAN }))
    }

    fn nan_hint(&self) -> Option<String> {
        Some(format!("a label is outside 0..{}", self.classes))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (loss, labels) = (cx.input(0), cx.cast(&cx.input(1), DType::I64)?);
        let [zero, classes] = [0, self.classes].map(|n| cx.scalar(n as f64, DType::I64));
        let low = cx.elementwise("GreaterOrEqual", &[&labels, &zero?], &[], DType::Bool)?;
        let high = cx.elementwise("Less", &[&labels, &classes?], &[], DType::Bool)?;
        let valid = cx.elementwise("And", &[&low, &high], &[], DType::Bool)?;
        let nan = cx.scalar(f64::NAN, loss.dtype())?;
        Ok(vec![cx.elementwise("Where", &[&valid, &loss, &nan], &[], loss.dtype())?])
    }
}

/// Softmax along an axis, `exp(x - max) / sum`. It is a separate operation because its gradient
/// needs only its result.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Softmax {
    axis: usize,
}
crate::exported!(Softmax, 1..=1);

impl OpDef for Softmax {
    fn name(&self) -> &str {
        "Softmax"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        super::float_input(x)?;
        super::axis_of(&x.shape, self.axis)?;
        if x.shape[self.axis].known() == Some(0) {
            let why = format!("{} is empty along the reduced axes", x.shape);
            return Err(Error::shape(why));
        }
        Ok(vec![x.clone()])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Wide
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (y, dy) = (cx.output(0), cx.dy());
        Ok(vec![Some(y * (dy - (dy * y).sum_keep(&[self.axis as isize])))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let sizes = x.sizes.clone();
        // Accumulate floats of 16 bits in f32.
        let dtype = x.dtype.widened();
        let reduced: Vec<bool> = (0..sizes.len()).map(|i| i == self.axis).collect();
        let mut kept = sizes.clone();
        kept[self.axis] = 1;
        let top = cx.reduce(ReduceKind::Max, dtype, &sizes, &reduced, &[&x], |_, r| r[0]);
        let top = cx.reshape(&top[0], &kept);
        let power = |e: &mut ExprBuilder, r: &[Reg]| {
            let below = e.binary(Binary::Sub, r[0], r[1]);
            e.unary(Unary::Exp, below)
        };
        let sum = cx.reduce(ReduceKind::Sum, dtype, &sizes, &reduced, &[&x, &top], power);
        let sum = cx.reshape(&sum[0], &kept);
        let scale = cx.map_to(dtype, &kept, &[&sum], |e, r| e.unary(Unary::Recip, r[0]));
        // Recompute the exponential: storing it would cost another pass over memory.
        Ok(vec![cx.map(&[&x, &top, &scale], |e, r| {
            let power = power(e, r);
            e.binary(Binary::Mul, power, r[2])
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        Ok(cx.float_output(|i| {
            let mut at = i.to_vec();
            let mut row = Vec::new();
            for k in 0..x.sizes()[self.axis] {
                at[self.axis] = k;
                row.push(x.float(&at));
            }
            let top =
                row.iter().copied().fold(f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
            let total = cx.sum(row.iter().map(|v| (v - top).exp()));
            (x.float(i) - top).exp() / total
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let stored = cx.stored(&x);
        let axis = [("axis", Attr::Int(cx.stored_axis(&x, self.axis)))];
        let y = cx.node("Softmax", &[&stored], &axis, x.dtype(), stored.shape().clone())?;
        Ok(vec![cx.restored(&y, &x)])
    }
}

impl Tensor {
    /// Returns the logarithm of the sum of exponentials over `axes`, which are kept with size 1.
    #[track_caller]
    pub fn log_sum_exp_keep(&self, axes: &[isize]) -> Tensor {
        // Subtract the maximum so that nothing overflows; it is a constant for the gradient, since
        // it cancels. Do not subtract an infinite maximum: infinity minus infinity is NaN.
        let top = self.max_keep(axes);
        let top = top.is_finite().select(&top, &top.zero()).stop_gradient();
        let sum = (self - &top).exp().sum_keep(axes);
        // If the sum is 0 the derivative of the logarithm is infinite; the inner `select` gives
        // gradient 0.
        let none = sum.equal(0.0);
        let log = none.select(&sum.one(), &sum).log();
        none.select(&sum.constant_like(f64::NEG_INFINITY), &(log + &top))
    }

    /// Returns the maximum along `axis` (without a gradient), this tensor minus that maximum, and
    /// the sum of exponentials of the difference. The difference keeps its precision however large
    /// the elements are; subtracting `log_sum_exp` would add the rounding error of a large number.
    #[track_caller]
    fn shifted_by_max(&self, axis: isize) -> [Tensor; 3] {
        let top = self.max_keep(&[axis]).stop_gradient();
        let below = self - &top;
        let sum = below.exp().sum_keep(&[axis]);
        [top, below, sum]
    }

    /// Returns the logarithm of the sum of exponentials over `axes` (empty: all), which are
    /// removed.
    #[track_caller]
    #[doc(alias = "logsumexp")]
    pub fn log_sum_exp_axes(&self, axes: &[isize]) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match resolve_axes(self, axes) {
            Ok(resolved) => composed(self, "LogSumExp", Location::caller(), || {
                let kept = self.log_sum_exp_keep(axes);
                resolved.iter().rev().fold(kept, |t, &a| t.squeeze(a as isize))
            }),
            Err(e) => self.fail("LogSumExp", e),
        }
    }

    /// Returns the logarithm of the sum of exponentials over the last dim.
    #[track_caller]
    pub fn log_sum_exp(&self) -> Tensor {
        self.log_sum_exp_axes(&[-1])
    }

    /// Returns the logarithm of the softmax over the last dim.
    #[track_caller]
    pub fn log_softmax(&self) -> Tensor {
        self.log_softmax_axis(-1)
    }

    /// Returns the logarithm of the softmax over one axis.
    #[track_caller]
    pub fn log_softmax_axis(&self, axis: isize) -> Tensor {
        composed(self, "LogSoftmax", Location::caller(), || {
            let [_, below, sum] = self.shifted_by_max(axis);
            below - sum.log()
        })
    }

    /// Returns the softmax over the last dim.
    #[track_caller]
    pub fn softmax(&self) -> Tensor {
        self.softmax_axis(-1)
    }

    /// Returns the softmax over one axis.
    #[track_caller]
    pub fn softmax_axis(&self, axis: isize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank()) {
            Ok(axis) => Tensor::apply_one(Softmax { axis }, &[self]),
            Err(e) => self.fail("Softmax", e),
        }
    }

    /// Returns the cross entropy of logits `[..., classes]` and integer labels `[...]`, one loss
    /// per label. A label that is not a class gives NaN, which training reports. Logits of other
    /// classes may be minus infinity, as for masked classes.
    #[track_caller]
    pub fn sparse_softmax_cross_entropy(&self, labels: &Tensor) -> Tensor {
        composed(self, "SparseSoftmaxCrossEntropy", Location::caller(), || {
            if self.is_poison() || labels.is_poison() {
                return Tensor::poison(self.graph());
            }
            let classes = self.shape().last().and_then(|d| d.known());
            let Some(classes) = classes.filter(|_| labels.rank() + 1 == self.rank()) else {
                let why = format!(
                    "expected logits [..., classes] and labels [...], got {} and {}",
                    self.shape(),
                    labels.shape()
                );
                return self.fail("Labels", Error::shape(why));
            };
            let x = wide(self);
            let [top, _, sum] = x.shifted_by_max(-1);
            // Use `select`, not a product with 0 and 1: another class may be at minus infinity. Sum
            // the label's logit unshifted, which shares the pass that finds the maximum; the
            // difference of the two is exact.
            let hit = labels.one_hot(classes, DType::Bool);
            let own = hit.select(&x, &x.zero()).sum_axes(&[-1]);
            let loss = sum.log().squeeze(-1) + (top.squeeze(-1) - own);
            Tensor::apply_one(CheckLabels { classes }, &[&loss, labels])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    fn last(name: &'static str, op: fn(&Tensor) -> Tensor) -> Case {
        case(name, Twice, move |draw| {
            let rank = draw.between(1, 3);
            let mut sizes = draw.sizes(rank);
            sizes[rank - 1] = sizes[rank - 1].max(1);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![op(&x[0])])
        })
    }

    cases![
        last("LogSumExp", Tensor::log_sum_exp)
            .empty("x.log_sum_exp()", "[0, 3]", "empty [0]", |x| x[0].log_sum_exp())
            .empty("x.log_sum_exp()", "[3, 0]", "error: [3, 0] is empty along the reduced axes", |x| x[0]
                .log_sum_exp()),
        last("LogSoftmax", Tensor::log_softmax)
            .empty("x.log_softmax()", "[0, 3]", "empty [0, 3]", |x| x[0].log_softmax())
            .empty("x.log_softmax()", "[3, 0]", "error: [3, 0] is empty along the reduced axes", |x| x[0]
                .log_softmax()),
        last("Softmax", Tensor::softmax)
            .empty("x.softmax()", "[0, 3]", "empty [0, 3]", |x| x[0].softmax())
            .empty("x.softmax()", "[3, 0]", "error: [3, 0] is empty along the reduced axes", |x| x[0]
                .softmax()),
        reduction("LogSumExp over axes", Twice, Any, false, |x, axes| vec![x.log_sum_exp_axes(axes)]),
        case("Softmax over an axis", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.solid(rank), draw.below(rank) as isize);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].softmax_axis(axis), x[0].log_softmax_axis(axis)]
            })
        }),
        case("CheckLabels", Twice, |draw| {
            let (rank, classes) = (draw.between(1, 2), draw.between(1, 7));
            let labels = draw.sizes(rank);
            let logits: Vec<usize> = labels.iter().copied().chain([classes]).collect();
            let dtype = draw.pick(&[DType::I32, DType::I64]);
            let inputs = vec![
                Input::floats(draw, logits, Any),
                Input::new(draw, labels, Elements::Below(dtype, classes)),
            ];
            Trial::new(inputs, |x| vec![x[0].sparse_softmax_cross_entropy(&x[1])])
        })
        .empty("x.sparse_softmax_cross_entropy(y)", "[0, 3], i32[0]", "empty [0]", |x| x[0]
            .sparse_softmax_cross_entropy(&x[1]))
        .empty(
            "x.sparse_softmax_cross_entropy(y)",
            "[2, 0], i32[2]",
            "error: [2, 0] is empty along the reduced axes",
            |x| x[0].sparse_softmax_cross_entropy(&x[1])
        ),
    ];
}
