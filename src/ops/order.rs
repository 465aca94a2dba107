//! Sorting: top-k, argsort and sort.

use super::composed;
use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{self, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Dim, Error, Result, element_count};

/// The indices of elements along the last dim in sorted order: the first `take`, or all.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Order {
    take: Option<usize>,
    descending: bool,
}
crate::exported!(Order, 1..=1);

impl OpDef for Order {
    fn name(&self) -> &str {
        "Order"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let shape = &inputs[0].shape;
        let Some((last, outer)) = shape.split_last() else {
            return Err(Error::shape("a scalar has no axis to sort along"));
        };
        let taken = match (self.take, last.known()) {
            (Some(k), Some(n)) if k > n => {
                return Err(Error::shape(format!("k is {k}, which exceeds the last dim of {shape}")));
            }
            (Some(k), _) => Dim::Known(k),
            (None, _) => *last,
        };
        let dims: Vec<Dim> = outer.iter().copied().chain([taken]).collect();
        Ok(vec![Spec { dtype: DType::I64, shape: dims.into() }])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let (outer, last) = x.sizes.split_at(x.sizes.len() - 1);
        let argsort = kir::Argsort {
            rows: element_count(outer)?,
            len: last[0],
            take: self.take.unwrap_or(last[0]),
            descending: self.descending,
        };
        Ok(vec![cx.argsort(argsort, &x)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, mut y) = (cx.input(0), Array::zeros(DType::I64, cx.output_sizes(0)));
        let (outer, last) = x.sizes().split_at(x.sizes().len() - 1);
        for row in Indices::new(outer) {
            let value = |index: usize| x.at(&[&row[..], &[index]].concat());
            let mut indices: Vec<usize> = (0..last[0]).collect();
            // A stable sort keeps the order of equal elements.
            indices.sort_by(|&a, &b| {
                let order = match (value(a), value(b)) {
                    (Scalar::Int(a), Scalar::Int(b)) => a.cmp(&b),
                    (a, b) => {
                        let (a, b) = (a.as_f64(), b.as_f64());
                        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                    }
                };
                if self.descending { order.reverse() } else { order }
            });
            for (k, &index) in indices.iter().take(self.take.unwrap_or(last[0])).enumerate() {
                y.set(&[&row[..], &[k]].concat(), Scalar::Int(index as i64));
            }
        }
        Ok(vec![y])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let x = match x.dtype() {
            DType::U8 | DType::Bool => cx.cast(&x, DType::I32)?,
            DType::Bf16 => cx.cast(&x, DType::F32)?,
            _ => x,
        };
        let last = x.shape().rank() - 1;
        let count = match self.take {
            Some(k) => cx.ints(&[k as i64])?,
            None => cx.size_of(&x, last)?,
        };
        let shape = cx.output_shape(0).clone();
        let attributes = [("axis", Attr::Int(-1)), ("largest", Attr::Int(self.descending.into()))];
        let outputs = [(x.dtype(), shape.clone()), (DType::I64, shape)];
        Ok(vec![cx.nodes("TopK", &[&x, &count], &attributes, &outputs)?.swap_remove(1)])
    }
}

impl Tensor {
    /// Returns the `k` largest elements along the last dim in descending order, and their indices
    /// as i64. Among equal elements the first comes first; NaN sorts above all numbers. The
    /// gradient goes to the selected elements.
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let caller = Location::caller();
        let indices = Tensor::apply_one(Order { take: Some(k), descending: true }, &[self]);
        (composed(self, "TopK", caller, || self.taken(&indices)), indices)
    }

    /// Returns the indices, as i64, that sort the elements along `axis` in ascending order. Among
    /// equal elements the first comes first; NaN sorts above all numbers.
    #[track_caller]
    pub fn argsort(&self, axis: isize) -> Tensor {
        self.order_along(axis, false)
    }

    /// Like [`Tensor::argsort`], in descending order.
    #[track_caller]
    pub fn argsort_descending(&self, axis: isize) -> Tensor {
        self.order_along(axis, true)
    }

    #[track_caller]
    fn order_along(&self, axis: isize, descending: bool) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let axis = match axis_in(axis, self.rank()) {
            Ok(axis) => axis,
            Err(e) => return self.fail("Argsort", e),
        };
        let mut swapped: Vec<usize> = (0..self.rank()).collect();
        swapped.swap(axis, self.rank() - 1);
        composed(self, "Argsort", Location::caller(), || {
            let along = self.transpose(&swapped);
            Tensor::apply_one(Order { take: None, descending }, &[&along]).transpose(&swapped)
        })
    }

    /// Returns the elements along `axis` in ascending order. NaN sorts above all numbers.
    #[track_caller]
    pub fn sort(&self, axis: isize) -> Tensor {
        self.sorted_by(axis, &self.argsort(axis))
    }

    /// Like [`Tensor::sort`], in descending order.
    #[track_caller]
    pub fn sort_descending(&self, axis: isize) -> Tensor {
        self.sorted_by(axis, &self.argsort_descending(axis))
    }

    #[track_caller]
    fn sorted_by(&self, axis: isize, indices: &Tensor) -> Tensor {
        composed(self, "Sort", Location::caller(), || match indices.is_poison() {
            true => indices.clone(),
            false => self.take_along_axis(indices, axis),
        })
    }

    /// Returns whether the score of each row's target is among the `k` largest of scores
    /// `[..., classes]`, for integer targets `[...]`. Equal scores share a rank, so more than `k`
    /// classes can be in the top k. The result is false where the target is not a class, and where
    /// a score of the row is not finite.
    #[track_caller]
    pub fn in_top_k(&self, targets: &Tensor, k: usize) -> Tensor {
        if self.is_poison() || targets.is_poison() {
            return Tensor::poison(self.graph());
        }
        if targets.rank() + 1 != self.rank() || !targets.dtype().is_int() || !self.dtype().is_float() {
            let why = format!(
                "expected float scores [..., classes] and integer targets [...], got {}{} and {}{}",
                self.dtype(),
                self.shape(),
                targets.dtype(),
                targets.shape()
            );
            return self.fail("InTopK", Error::shape(why));
        }
        composed(self, "InTopK", Location::caller(), || {
            let targets = targets.with_dims_of(self, targets.rank(), "a target for each row of scores");
            if targets.is_poison() {
                return targets;
            }
            let indices = self.iota_like(-1, DType::I64);
            let hit = indices.equal(&targets.cast(DType::I64).expand_dims(-1));
            let score = hit.select(self, &self.zero()).sum_keep(&[-1]);
            let above = self.optimization_barrier().greater(&score).cast(DType::I64).sum_axes(&[-1]);
            let valid = hit.any_axes(&[-1]).logical_and(&self.is_finite().all_axes(&[-1]));
            let bound = above.constant_like(k as f64);
            above.less(&bound).logical_and(&valid)
        })
    }

    #[track_caller]
    fn taken(&self, indices: &Tensor) -> Tensor {
        if indices.is_poison() { indices.clone() } else { self.take_along_axis(indices, -1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("TopK", Twice, |draw| {
            let rank = draw.between(1, 3);
            let sizes = draw.sizes(rank);
            let k = draw.below(sizes[rank - 1] + 1);
            Trial::new(vec![Input::floats(draw, sizes, Apart)], move |x| {
                let (values, indices) = x[0].top_k(k);
                vec![values.exp(), indices.cast(x[0].dtype())]
            })
        })
        .empty("x.top_k(2).0", "[0, 3]", "empty [0, 2]", |x| x[0].top_k(2).0)
        .empty(
            "x.top_k(1).0",
            "[3, 0]",
            "error: k is 1, which exceeds the last dim of [3, 0]",
            |x| x[0].top_k(1).0
        ),
        case("Sort", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank) as isize);
            let descending = draw.below(2) == 1;
            Trial::new(vec![Input::floats(draw, sizes, Apart)], move |x| {
                let sorted = if descending { x[0].sort_descending(axis) } else { x[0].sort(axis) };
                vec![sorted.exp()]
            })
        })
        .empty("x.sort(0)", "[0, 3]", "empty [0, 3]", |x| x[0].sort(0)),
        case("InTopK", Never("boolean result"), |draw| {
            let (rows, classes, k) = (draw.between(1, 5), draw.between(1, 7), draw.below(4));
            let inputs = vec![
                Input::floats(draw, [rows, classes], Halves),
                Input::new(draw, [rows], Elements::Below(DType::I32, classes + 1)),
            ];
            Trial::new(inputs, move |x| vec![x[0].in_top_k(&x[1], k)])
        })
        .empty("x.in_top_k(y, 1)", "[0, 3], i32[0]", "empty [0]", |x| x[0].in_top_k(&x[1], 1))
        .empty("x.in_top_k(y, 1)", "[2, 0], i32[2]", "zeros [2]", |x| x[0].in_top_k(&x[1], 1)),
    ];
}
