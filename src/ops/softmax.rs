//! Softmax, and the losses made of it.

use super::composed;
use super::loss::wide;
use super::reduce::resolve_axes;
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, LowerCx, View};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{Error, Result};

/// The loss where the label is a class, NaN where it is none: a wrong label must not train silently.
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
            return Err(Error::dtype(format!("takes integer labels, not {}", labels.dtype)));
        }
        if loss.shape.broadcast(&labels.shape)?.rank() != labels.shape.rank() {
            return Err(Error::shape(format!("losses {} and labels {} differ", loss.shape, labels.shape)));
        }
        if let (Some(a), Some(b)) = (loss.shape.known(), labels.shape.known())
            && a != b
        {
            return Err(Error::shape(format!(
                "the logits are for {} examples, the labels for {}",
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
        let class = Class::of(loss.dtype);
        Ok(vec![cx.map(&[&loss, &labels], |e, r| {
            let (zero, classes) = (e.constant(0.0, Class::I64), e.constant(self.classes as f64, Class::I64));
            let low = e.binary(Binary::Ge, r[1], zero);
            let high = e.binary(Binary::Lt, r[1], classes);
            let good = e.binary(Binary::And, low, high);
            let good = e.cast(class, good);
            let nan = e.constant(f64::NAN, class);
            e.select(good, r[0], nan)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (loss, labels) = (cx.input(0), cx.input(1));
        let is_class = |label: i64| (0..self.classes as i64).contains(&label);
        Ok(cx.float_output(|i| if is_class(labels.int(i)) { loss.float(i) } else { f64::NAN }))
    }

    fn nan_hint(&self) -> Option<String> {
        Some(format!("a label lies outside 0..{}", self.classes))
    }
}

impl Tensor {
    /// The logarithm of the sum of exponentials over some axes, which stay with size 1.
    #[track_caller]
    pub fn log_sum_exp_keep(&self, axes: &[isize]) -> Tensor {
        // The largest is taken out first, so that nothing overflows; as a constant, since it cancels.
        let top = self.max_keep(axes).stop_gradient();
        (self - &top).exp().sum_keep(axes).log() + top
    }

    /// The logarithm of the sum of exponentials over some axes (none: all), which vanish.
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

    /// The logarithm of the sum of exponentials over the last dim.
    #[track_caller]
    pub fn log_sum_exp(&self) -> Tensor {
        self.log_sum_exp_axes(&[-1])
    }

    /// The logarithm of the softmax over the last dim.
    #[track_caller]
    pub fn log_softmax(&self) -> Tensor {
        self.log_softmax_axis(-1)
    }

    /// The logarithm of the softmax over one axis.
    #[track_caller]
    pub fn log_softmax_axis(&self, axis: isize) -> Tensor {
        composed(self, "LogSoftmax", Location::caller(), || self - self.log_sum_exp_keep(&[axis]))
    }

    /// The softmax over the last dim.
    #[track_caller]
    pub fn softmax(&self) -> Tensor {
        self.softmax_axis(-1)
    }

    /// The softmax over one axis.
    #[track_caller]
    pub fn softmax_axis(&self, axis: isize) -> Tensor {
        composed(self, "Softmax", Location::caller(), || (self - self.log_sum_exp_keep(&[axis])).exp())
    }

    /// The cross entropy of logits `[..., classes]` and integer labels `[...]`, one loss for each label. A label that
    /// is no class gives NaN, which training reports.
    #[track_caller]
    pub fn sparse_softmax_cross_entropy(&self, labels: &Tensor) -> Tensor {
        composed(self, "SparseSoftmaxCrossEntropy", Location::caller(), || {
            if self.is_poison() || labels.is_poison() {
                return Tensor::poison(self.graph());
            }
            let classes = self.shape().last().and_then(|d| d.known());
            let Some(classes) = classes.filter(|_| labels.rank() + 1 == self.rank()) else {
                let why = format!(
                    "takes logits [..., classes] and labels [...], not {} and {}",
                    self.shape(),
                    labels.shape()
                );
                return self.fail("Labels", Error::shape(why));
            };
            let x = wide(self);
            let hit = labels.one_hot(classes, x.dtype());
            let loss = x.log_sum_exp_keep(&[-1]).squeeze(-1) - (hit * &x).sum_axes(&[-1]);
            Tensor::apply_one(CheckLabels { classes }, &[&loss, labels])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;
    use tensorpack_tensor::DType;

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
            .empty(
                "x.log_sum_exp()",
                "[3, 0]",
                "error: nothing to choose from: [3, 0] is empty along the axes reduced",
                |x| x[0].log_sum_exp()
            ),
        last("LogSoftmax", Tensor::log_softmax)
            .empty("x.log_softmax()", "[0, 3]", "empty [0, 3]", |x| x[0].log_softmax())
            .empty(
                "x.log_softmax()",
                "[3, 0]",
                "error: nothing to choose from: [3, 0] is empty along the axes reduced",
                |x| x[0].log_softmax()
            ),
        last("Softmax", Tensor::softmax)
            .empty("x.softmax()", "[0, 3]", "empty [0, 3]", |x| x[0].softmax())
            .empty(
                "x.softmax()",
                "[3, 0]",
                "error: nothing to choose from: [3, 0] is empty along the axes reduced",
                |x| x[0].softmax()
            ),
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
            let dtype = draw.of(&[DType::I32, DType::I64]);
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
            "error: nothing to choose from: [2, 0] is empty along the axes reduced",
            |x| x[0].sparse_softmax_cross_entropy(&x[1])
        ),
    ];
}
