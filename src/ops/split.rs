//! Parts of a tensor along one axis. All are views: no element moves.

use crate::graph::{Tensor, axis_in};
use tensorpack_tensor::{Error, Result};

/// Parts of a tensor at most: each is a node of the graph.
const MOST_PARTS: usize = 1 << 20;

fn too_many(parts: usize) -> Error {
    Error::argument(format!("a tensor falls into at most {MOST_PARTS} parts, not {parts}"))
}

impl Tensor {
    /// The indices from `begin` to `end` (`None`: to the end) of one axis.
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

    /// Parts of these sizes along `axis`, in order; the sizes must add up to the axis's own.
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
                sizes.iter().map(&mut next).collect()
            }
            Err(e) => vec![self.broken("Split", e); sizes.len()],
        }
    }

    /// `count` parts of one size along `axis`, in order; a single broken one if there are too many for a graph.
    #[track_caller]
    pub fn split_equal(&self, count: usize, axis: isize) -> Vec<Tensor> {
        if count > MOST_PARTS {
            return vec![self.broken("Split", too_many(count))];
        }
        match self.known_axis(axis) {
            Ok((at, n)) if count > 0 && n % count == 0 => self.split(&vec![n / count; count], at as isize),
            Ok(_) => {
                let why = format!("axis {axis} of {} does not fall into {count} equal parts", self.shape());
                vec![self.broken("Split", Error::shape(why)); count]
            }
            Err(e) => vec![self.broken("Split", e); count],
        }
    }

    /// One tensor for each index of `axis`, without that axis. Its size must be known while the graph is built.
    #[track_caller]
    pub fn unstack(&self, axis: isize) -> Vec<Tensor> {
        match self.known_axis(axis) {
            Ok((_, n)) if n > MOST_PARTS => vec![self.broken("Unstack", too_many(n))],
            Ok((axis, n)) => (0..n).map(|i| self.part(axis, i, Some(i + 1)).squeeze(axis as isize)).collect(),
            Err(e) => vec![self.broken("Unstack", e)],
        }
    }

    /// The axis, and its size, which must be known while the graph is built.
    fn known_axis(&self, axis: isize) -> Result<(usize, usize)> {
        let at = axis_in(axis, self.rank())?;
        let size = self.shape()[at].known();
        size.map(|n| (at, n)).ok_or_else(|| {
            Error::shape(format!("the size of axis {axis} of {} must be known to cut it", self.shape()))
        })
    }

    #[track_caller]
    fn part(&self, axis: usize, begin: usize, end: Option<usize>) -> Tensor {
        let at = |i: usize| i == axis;
        let begin: Vec<usize> = (0..self.rank()).map(|i| if at(i) { begin } else { 0 }).collect();
        let end: Vec<Option<usize>> = (0..self.rank()).map(|i| end.filter(|_| at(i))).collect();
        self.strided_slice(&begin, &end, &vec![1; self.rank()])
    }

    /// A poison tensor, with the error on record unless this is one already.
    #[track_caller]
    fn broken(&self, name: &str, error: Error) -> Tensor {
        if self.is_poison() { self.clone() } else { self.fail(name, error) }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Graph, TensorSpec};
    use crate::trial::*;

    cases![
        case("Split", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (mut sizes, axis) = (draw.sizes(rank), draw.below(rank));
            let parts: Vec<usize> = (0..draw.between(1, 3)).map(|_| draw.of(&[1, 2, 0, 5])).collect();
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
    fn errors_say_what_does_not_fit() {
        let message = |build: fn(&crate::graph::Tensor)| {
            let g = Graph::new();
            build(&g.placeholder(&TensorSpec::f32("x", [Some(4), None])));
            g.freeze().unwrap_err().message().to_string()
        };
        assert!(message(|x| drop(x.split(&[1, 2], 0))).contains("[1, 2] do not add up to axis 0 of [4, ?]"));
        assert!(message(|x| drop(x.split_equal(3, 0))).contains("does not fall into 3 equal parts"));
        assert!(message(|x| drop(x.unstack(1))).contains("the size of axis 1 of [4, ?] must be known"));
        assert!(message(|x| drop(x.slice_axis(2, 0, None))).contains("axis 2 is outside"));
    }
}
