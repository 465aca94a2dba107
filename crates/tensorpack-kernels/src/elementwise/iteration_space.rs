//! Iteration spaces in their simplest form. Neighboring dimensions that are contiguous for every
//! operand are merged, so that most kernels see a vector or a matrix whatever the rank of the
//! tensors.

use crate::elementwise::Operand;
use crate::expr::{Expr, Step};

/// The sizes of an iteration space, with the strides of everything read along it.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// The sizes, outermost first.
    pub(crate) dims: Vec<usize>,
    /// The group that each dimension belongs to; only dimensions of one group are merged.
    pub(crate) groups: Vec<u8>,
    /// The strides along each dimension, for each operand and then for each `Index` step, which
    /// "reads" its own offset.
    pub(crate) strides: Vec<Vec<isize>>,
}

impl Space {
    /// Creates the space of an expression over `dims`, not yet merged.
    pub(crate) fn new(dims: &[usize], groups: Vec<u8>, operands: &[Operand], expr: &Expr) -> Space {
        let mut strides: Vec<Vec<isize>> = operands
            .iter()
            .map(|o| {
                assert_eq!(o.strides.len(), dims.len(), "an operand needs one stride per dimension");
                o.strides.clone()
            })
            .collect();
        for step in &expr.steps {
            if let Step::Index { axis, .. } = *step {
                strides.push((0..dims.len()).map(|d| isize::from(d == axis as usize)).collect());
            }
        }
        Space { dims: dims.to_vec(), groups, strides }
    }

    /// Drops dimensions of size 1 and merges neighbors of one group wherever all strides allow.
    pub(crate) fn merge(&self) -> Space {
        self.merge_where(|_| true)
    }

    /// Drops dimensions of size 1.
    pub(crate) fn squeeze(&self) -> Space {
        self.merge_where(|_| false)
    }

    /// Merges like [`Space::merge`], but keeps the last dimension, so that its size does not depend
    /// on the operands.
    pub(crate) fn merge_but_last(&self) -> Space {
        let last = self.dims.iter().rposition(|&n| n != 1);
        self.merge_where(|d| Some(d) != last)
    }

    /// Drops dimensions of size 1, and merges dimensions into their neighbors where `may` and the
    /// strides allow it.
    fn merge_where(&self, may: impl Fn(usize) -> bool) -> Space {
        let empty = vec![Vec::new(); self.strides.len()];
        let mut out = Space { dims: Vec::new(), groups: Vec::new(), strides: empty };
        for d in 0..self.dims.len() {
            let (n, group) = (self.dims[d], self.groups[d]);
            if n == 1 {
                continue;
            }
            let joins = may(d)
                && out.groups.last() == Some(&group)
                && out.strides.iter().zip(&self.strides).all(|(o, s)| o.last() == Some(&(s[d] * n as isize)));
            if joins {
                *out.dims.last_mut().expect("a dim to join") *= n;
                for (o, s) in out.strides.iter_mut().zip(&self.strides) {
                    *o.last_mut().expect("a stride to join") = s[d];
                }
            } else {
                out.dims.push(n);
                out.groups.push(group);
                for (o, s) in out.strides.iter_mut().zip(&self.strides) {
                    o.push(s[d]);
                }
            }
        }
        out
    }

    /// Returns the same space with its dimensions in another order.
    pub(crate) fn permute(&self, order: &[usize]) -> Space {
        Space {
            dims: order.iter().map(|&d| self.dims[d]).collect(),
            groups: order.iter().map(|&d| self.groups[d]).collect(),
            strides: self.strides.iter().map(|s| order.iter().map(|&d| s[d]).collect()).collect(),
        }
    }
}
