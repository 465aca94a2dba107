//! Splits a tensor along one axis. All parts are views: no element moves.

use crate::graph::{Tensor, axis_in};
use std::panic::Location;
use tensorpack_tensor::{Error, Result};

/// The maximum number of parts: each is a node of the graph.
const MAX_PARTS: usize = 1 << 20;

fn too_many(parts: usize) -> Error {
    Error::argument(format!("a tensor can be split into at most {MAX_PARTS} parts, got {parts}"))
}

impl Tensor {
    /// Returns the indices from `begin` to `end` (`None`: to the end) of one axis.
    #[track_caller]
    #[doc(alias = "narrow")]
    pub fn slice_axis(&self, axis: isize, begin: usize, end: Option<usize>) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank()) {
            Ok(axis) => self.part(axis, begin, end),
            Err(e) => self.fail("Slice", e),
        }
    }

    /// Splits along `axis` into parts of these sizes, in order; the sizes must add up to that of
    /// the axis.
    #[track_caller]
    pub fn split(&self, sizes: &[usize], axis: isize) -> Vec<Tensor> {
        let parts = self.known_axis(axis).and_then(|(axis, n)| {
            match sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) {
                Some(sum) if sum == n => Ok(axis),
                _ => Err(Error::shape(format!(
                    "the sizes {sizes:?} do not add up to axis {axis} of {}",
                    self.shape()
                ))),
            }
        });
        match parts {
            Ok(axis) => {
                let mut end = 0;
                let mut next = |size: &usize| {
                    end += size;
                    self.part(axis, end - size, Some(end))
                };
                self.graph().called_from(Location::caller(), || sizes.iter().map(&mut next).collect())
            }
            Err(e) => vec![self.fail_once("Split", e); sizes.len()],
        }
    }

    /// Splits along `axis` into `count` equal parts, in order. Returns a single poison tensor if
    /// there are too many.
    #[track_caller]
    pub fn split_equal(&self, count: usize, axis: isize) -> Vec<Tensor> {
        if count > MAX_PARTS {
            return vec![self.fail_once("Split", too_many(count))];
        }
        match self.known_axis(axis) {
            Ok((at, n)) if count > 0 && n % count == 0 => self.split(&vec![n / count; count], at as isize),
            Ok(_) => {
                let why = format!("axis {axis} of {} cannot be split into {count} equal parts", self.shape());
                vec![self.fail_once("Split", Error::shape(why)); count]
            }
            Err(e) => vec![self.fail_once("Split", e); count],
        }
    }

    /// Returns one tensor for each index of `axis`, without that axis. Its size must be known while
    /// the graph is built.
    #[track_caller]
    pub fn unstack(&self, axis: isize) -> Vec<Tensor> {
        match self.known_axis(axis) {
            Ok((_, n)) if n > MAX_PARTS => vec![self.fail_once("Unstack", too_many(n))],
            Ok((axis, n)) => self.graph().called_from(Location::caller(), || {
                (0..n).map(|i| self.part(axis, i, Some(i + 1)).squeeze(axis as isize)).collect()
            }),
            Err(e) => vec![self.fail_once("Unstack", e)],
        }
    }

    /// Returns the axis and its size, which must be known while the graph is built.
    fn known_axis(&self, axis: isize) -> Result<(usize, usize)> {
        let at = axis_in(axis, self.rank())?;
        let size = self.shape()[at].known();
        size.map(|n| (at, n)).ok_or_else(|| {
            Error::shape(format!("the size of axis {axis} of {} must be known to split it", self.shape()))
        })
    }

    #[track_caller]
    fn part(&self, axis: usize, begin: usize, end: Option<usize>) -> Tensor {
        let at = |i: usize| i == axis;
        let begin: Vec<usize> = (0..self.rank()).map(|i| if at(i) { begin } else { 0 }).collect();
        let end: Vec<Option<usize>> = (0..self.rank()).map(|i| end.filter(|_| at(i))).collect();
        self.strided_slice(&begin, &end, &vec![1; self.rank()])
    }

    /// Returns a poison tensor, and records the error unless this tensor is poison already.
    #[track_caller]
    fn fail_once(&self, name: &str, error: Error) -> Tensor {
        if self.is_poison() { self.clone() } else { self.fail(name, error) }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Graph, TensorSpec};
    use crate::op_cases::*;

    cases![
        case("Split", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (mut sizes, axis) = (draw.sizes(rank), draw.below(rank));
            let parts: Vec<usize> = (0..draw.between(1, 3)).map(|_| draw.pick(&[1, 2, 0, 5])).collect();
            sizes[axis] = parts.iter().sum();
            let x = Input::floats(draw, sizes, Any).closed();
            Trial::new(vec![x], move |x| x[0].square().split(&parts, axis as isize))
        })
        .empty("x.slice_axis(0, 2, None)", "[2, 3]", "empty [0, 3]", |x| x[0].slice_axis(0, 2, None))
        .empty("x.split([0, 3], 1)[0]", "[2, 3]", "empty [2, 0]", |x| x[0].split(&[0, 3], 1).remove(0)),
        case("Unstack", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (mut sizes, axis) = (draw.sizes(rank), draw.below(rank));
            sizes[axis] = draw.between(1, 4);
            let x = Input::floats(draw, sizes, Any).closed();
            Trial::new(vec![x], move |x| x[0].square().unstack(axis as isize))
        }),
    ];

    #[test]
    fn errors_name_the_mismatch() {
        let message = |build: fn(&crate::graph::Tensor)| {
            let g = Graph::new();
            build(&g.placeholder(&TensorSpec::f32("x", [Some(4), None])));
            g.freeze().unwrap_err().message().to_string()
        };
        assert!(message(|x| drop(x.split(&[1, 2], 0))).contains("[1, 2] do not add up to axis 0 of [4, ?]"));
        assert!(message(|x| drop(x.split_equal(3, 0))).contains("cannot be split into 3 equal parts"));
        assert!(message(|x| drop(x.unstack(1))).contains("the size of axis 1 of [4, ?] must be known"));
        assert!(message(|x| drop(x.slice_axis(2, 0, None))).contains("axis 2 is out of range"));
    }
}
