//! Elements in the order of their values: the largest few, and all of them.

use super::composed;
use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{LowerCx, View};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_kernels as kernels;
use tensorpack_tensor::{DType, Dim, Error, Result, element_count};

/// The places of elements along the last dim in the order of their values, the first `take` of them or all.
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
            return Err(Error::shape("a scalar has no elements to order"));
        };
        let taken = match (self.take, last.known()) {
            (Some(k), Some(n)) if k > n => {
                return Err(Error::shape(format!("there are no {k} elements along the last dim of {shape}")));
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
        let order = kernels::Argsort {
            rows: element_count(outer)?,
            len: last[0],
            take: self.take.unwrap_or(last[0]),
            descending: self.descending,
        };
        Ok(vec![cx.order(order, &x)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, mut y) = (cx.input(0), Array::zeros(DType::I64, cx.output_sizes(0)));
        let (outer, last) = x.sizes().split_at(x.sizes().len() - 1);
        for row in Indices::new(outer) {
            let value = |place: usize| x.at(&[&row[..], &[place]].concat());
            let mut places: Vec<usize> = (0..last[0]).collect();
            // A stable sort keeps equals in place.
            places.sort_by(|&a, &b| {
                let order = match (value(a), value(b)) {
                    (Scalar::Int(a), Scalar::Int(b)) => a.cmp(&b),
                    (a, b) => {
                        let (a, b) = (a.as_f64(), b.as_f64());
                        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                    }
                };
                if self.descending { order.reverse() } else { order }
            });
            for (k, &place) in places.iter().take(self.take.unwrap_or(last[0])).enumerate() {
                y.set(&[&row[..], &[k]].concat(), Scalar::Int(place as i64));
            }
        }
        Ok(vec![y])
    }
}

impl Tensor {
    /// The `k` largest elements along the last dim, the largest first, and their places there as i64. Of equals the
    /// earlier comes first; a NaN is larger than any number. The gradient goes to the elements chosen.
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let caller = Location::caller();
        let places = Tensor::apply_one(Order { take: Some(k), descending: true }, &[self]);
        (composed(self, "TopK", caller, || self.taken(&places)), places)
    }

    /// The places, as i64, of the elements along `axis` in the order of their values, the smallest first or the largest.
    /// Of equals the earlier comes first; a NaN is larger than any number.
    #[track_caller]
    pub fn argsort(&self, axis: isize, descending: bool) -> Tensor {
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

    /// The elements along `axis` in the order of their values, the smallest first or the largest.
    #[track_caller]
    pub fn sort(&self, axis: isize, descending: bool) -> Tensor {
        let places = self.argsort(axis, descending);
        composed(self, "Sort", Location::caller(), || match places.is_poison() {
            true => places.clone(),
            false => self.take_along_axis(&places, axis),
        })
    }

    /// Whether the score of each row's target is among the `k` largest of scores `[..., classes]`, for integer targets
    /// `[...]`. Equal scores count as one rank, so that more than `k` can be among them. It is false where the target
    /// is no class, and where a score of the row is not finite.
    #[track_caller]
    pub fn in_top_k(&self, targets: &Tensor, k: usize) -> Tensor {
        if self.is_poison() || targets.is_poison() {
            return Tensor::poison(self.graph());
        }
        if targets.rank() + 1 != self.rank() || !targets.dtype().is_int() || !self.dtype().is_float() {
            let why = format!(
                "takes float scores [..., classes] and integer targets [...], not {}{} and {}{}",
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
            let places = self.iota_like(-1, DType::I64);
            let hit = places.equal(&targets.cast(DType::I64).expand_dims(-1));
            let score = hit.select(self, &self.zero()).sum_keep(&[-1]);
            let above = self.optimization_barrier().greater(&score).cast(DType::I64).sum_axes(&[-1]);
            let sound = hit.any_axes(&[-1]).logical_and(&self.is_finite().all_axes(&[-1]));
            let bound = above.constant_like(k as f64);
            above.less(&bound).logical_and(&sound)
        })
    }

    #[track_caller]
    fn taken(&self, places: &Tensor) -> Tensor {
        if places.is_poison() { places.clone() } else { self.take_along_axis(places, -1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        case("TopK", Twice, |draw| {
            let rank = draw.between(1, 3);
            let sizes = draw.sizes(rank);
            let k = draw.below(sizes[rank - 1] + 1);
            Trial::new(vec![Input::floats(draw, sizes, Apart)], move |x| {
                let (values, places) = x[0].top_k(k);
                vec![values.exp(), places.cast(x[0].dtype())]
            })
        })
        .empty("x.top_k(2).0", "[0, 3]", "empty [0, 2]", |x| x[0].top_k(2).0)
        .empty(
            "x.top_k(1).0",
            "[3, 0]",
            "error: there are no 1 elements along the last dim of [3, 0]",
            |x| x[0].top_k(1).0
        ),
        case("Sort", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank) as isize);
            let descending = draw.below(2) == 1;
            Trial::new(vec![Input::floats(draw, sizes, Apart)], move |x| {
                vec![x[0].sort(axis, descending).exp()]
            })
        })
        .empty("x.sort(0, false)", "[0, 3]", "empty [0, 3]", |x| x[0].sort(0, false)),
        case("InTopK", Never("a truth value"), |draw| {
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
