//! Non-maximum suppression with results of a fixed size.

use super::bilinear::position_dtype;
use super::{composed, same_spec};
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, LowerCx, View};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, Result, element_count};

/// Which boxes are kept, `[..., n]`, where `[..., n, n]` says which box suppresses which: those that no
/// kept box before them suppresses.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Nms;
crate::exported!(Nms, 1..=1);

impl OpDef for Nms {
    fn name(&self) -> &str {
        "Nms"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let shape = &inputs[0].shape;
        let Some((last, kept)) = shape.split_last().filter(|(_, kept)| !kept.is_empty()) else {
            return Err(Error::shape(format!("expected a matrix [..., n, n], got {shape}")));
        };
        let mut square = kept.to_vec();
        square.push(kept[kept.len() - 1]);
        same_spec(&inputs[0], &Spec { dtype: DType::Bool, shape: square.into() })?;
        let mut kept = kept.to_vec();
        if let Some(n) = kept.last_mut().filter(|n| n.known().is_none()) {
            *n = *last;
        }
        Ok(vec![Spec { dtype: DType::Bool, shape: kept.into() }])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let (rows, square) = x.sizes.split_at(x.sizes.len() - 2);
        let nms = kir::Nms { rows: element_count(rows)?, len: square[0] };
        Ok(vec![cx.nms(nms, &x)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, mut kept) = (cx.input(0), Array::zeros(DType::Bool, cx.output_sizes(0)));
        let (rows, square) = x.sizes().split_at(x.sizes().len() - 2);
        for row in Indices::new(rows) {
            for j in 0..square[0] {
                let suppresses = |&i: &usize| {
                    kept.int(&[&row[..], &[i]].concat()) != 0 && x.int(&[&row[..], &[i, j]].concat()) != 0
                };
                let suppressed = (0..j).any(|i| suppresses(&i));
                kept.set(&[&row[..], &[j]].concat(), Scalar::Int((!suppressed).into()));
            }
        }
        Ok(vec![kept])
    }
}

/// Options of [`Tensor::nms`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NmsOptions {
    /// A box is suppressed if its intersection over union with a better one exceeds this. Defaults to
    /// 0.5.
    pub iou_threshold: f64,
    /// Boxes whose score is not above this are left out, and suppress nothing. Defaults to negative
    /// infinity, so that only boxes with this score or NaN are left out.
    pub score_threshold: f64,
    /// The number of indices in the result. Defaults to 100.
    pub max_outputs: usize,
}

impl Default for NmsOptions {
    fn default() -> NmsOptions {
        NmsOptions { iou_threshold: 0.5, score_threshold: f64::NEG_INFINITY, max_outputs: 100 }
    }
}

/// The largest number of results.
const MAX_OUTPUTS: usize = 1 << 20;

/// Larger than any index.
const INDEX_LIMIT: f64 = (1u64 << 40) as f64;

impl Tensor {
    /// Non-maximum suppression of boxes `[..., n, 4]` with scores `[..., n]`: takes boxes in descending
    /// order of score and leaves out those that overlap one that was taken. Among equal scores the first
    /// comes first.
    ///
    /// Returns the indices of the boxes that are kept, i64 `[..., max_outputs]`, in descending order of
    /// score, followed by -1. They are torchvision's `nms` of every list, cut off after `max_outputs`.
    /// There is no gradient. A list of `n` boxes takes `n * n` bytes.
    #[track_caller]
    #[doc(alias = "non_max_suppression")]
    pub fn nms(&self, scores: &Tensor, options: NmsOptions) -> Tensor {
        self.nms_of(Location::caller(), scores, None, options)
    }

    /// [`Tensor::nms`] in which only boxes of the same class, an integer in `classes` `[..., n]`,
    /// suppress each other. They are torchvision's `batched_nms`, cut off after `max_outputs`.
    #[track_caller]
    pub fn batched_nms(&self, scores: &Tensor, classes: &Tensor, options: NmsOptions) -> Tensor {
        self.nms_of(Location::caller(), scores, Some(classes), options)
    }

    fn nms_of(
        &self,
        caller: &'static Location<'static>,
        scores: &Tensor,
        classes: Option<&Tensor>,
        options: NmsOptions,
    ) -> Tensor {
        if [Some(self), Some(scores), classes].into_iter().flatten().any(Tensor::is_poison) {
            return Tensor::poison(self.graph());
        }
        let name = "Nms";
        let fail = |e: Error| self.graph().called_from(caller, || self.fail(name, e));
        let is_list = |t: &Tensor| t.rank() + 1 == self.rank();
        let boxes = self.rank() >= 2 && self.shape().last().and_then(|d| d.known()) == Some(4);
        let floats = self.dtype().is_float() && scores.dtype().is_float();
        let ints = classes.is_none_or(|c| c.dtype().is_int() && is_list(c));
        if !(boxes && floats && ints && is_list(scores)) {
            let found = [Some(self), Some(scores), classes].into_iter().flatten();
            let found: Vec<String> = found.map(|t| format!("{}{}", t.dtype(), t.shape())).collect();
            return fail(Error::shape(format!(
                "expected float boxes [..., n, 4], float scores [..., n] and integer classes [..., n], got {}",
                found.join(", ")
            )));
        }
        let NmsOptions { iou_threshold, score_threshold, max_outputs } = options;
        if iou_threshold.is_nan() || score_threshold.is_nan() || max_outputs > MAX_OUTPUTS {
            let why = format!("{options:?}: thresholds must not be NaN, and outputs at most {MAX_OUTPUTS}");
            return fail(Error::argument(why));
        }
        composed(self, name, caller, || {
            let dims = scores.rank();
            let scores = scores.with_dims_of(self, dims, "a score for each box").stop_gradient();
            let classes = classes.map(|c| c.with_dims_of(self, dims, "a class for each box"));
            if scores.is_poison() || classes.as_ref().is_some_and(Tensor::is_poison) {
                return Tensor::poison(self.graph());
            }
            let order = scores.argsort_descending(-1);
            let sorted = |t: &Tensor| t.take_along_axis(&order, -1);
            let boxes = self.stop_gradient().cast(position_dtype(self));
            let columns = [0, 1, 2, 3].map(|i| sorted(&boxes.slice_axis(-1, i, Some(i + 1)).squeeze(-1)));
            let boxes = self.graph().stack(&columns, -1);
            let valid = {
                let scores = sorted(&scores);
                scores.greater(score_threshold)
            };
            let iou = boxes.box_iou(&boxes);
            let mut suppresses = iou.greater(iou_threshold).logical_and(&valid.expand_dims(-1));
            if let Some(classes) = classes {
                let classes = sorted(&classes.cast(DType::I64));
                suppresses = suppresses.logical_and(&classes.expand_dims(-1).equal(&classes.expand_dims(-2)));
            }
            let kept = Tensor::apply_one(Nms, &[&suppresses]).logical_and(&valid);
            // The kept boxes come first if those before others have larger keys.
            let rank = order.iota_like(-1, DType::I64);
            let key = kept.select(&(rank.constant_like(INDEX_LIMIT) - &rank), &rank.zero());
            let missing = match order.shape().last().and_then(|d| d.known()) {
                Some(n) => max_outputs.saturating_sub(n),
                None => max_outputs,
            };
            let padded = |t: &Tensor| {
                let (zeros, mut high) = (vec![0; dims], vec![0; dims]);
                high[dims - 1] = missing;
                t.pad(&zeros, &high, &zeros)
            };
            let (keys, places) = padded(&key).top_k(max_outputs);
            let indices = padded(&order).take_along_axis(&places, -1);
            keys.greater(0.0).select(&indices, &indices.constant_like(-1.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("Nms", Never("integer result"), |draw| {
            let (lists, n, classes) = (draw.between(1, 2), draw.below(9), draw.between(1, 3));
            let options = NmsOptions {
                iou_threshold: draw.pick(&[0.17, 0.37]),
                score_threshold: draw.pick(&[f64::NEG_INFINITY, -1.25]),
                max_outputs: draw.pick(&[1, 4, 12]),
            };
            let inputs = vec![
                Input::new(draw, [lists, n, 2], Elements::Below(DType::I32, 5)),
                Input::new(draw, [lists, n, 2], Elements::Below(DType::I32, 5)),
                Input::floats(draw, [lists, n], Halves),
                Input::new(draw, [lists, n], Elements::Below(DType::I32, classes)),
            ];
            Trial::new(inputs, move |x| {
                let corner = x[0].cast(DType::F32);
                let far = &corner + x[1].cast(DType::F32);
                let boxes = x[0].graph().concat(&[corner, far], -1);
                vec![boxes.nms(&x[2], options), boxes.batched_nms(&x[2], &x[3], options)]
            })
        })
        .empty("x.nms(y)", "[0, 4], [0]", "-1 [100]", |x| x[0].nms(&x[1], NmsOptions::default())),
    ];
}
