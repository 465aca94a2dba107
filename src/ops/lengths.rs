//! Lengths of padded sequences.

use crate::graph::Tensor;
use tensorpack_tensor::{DType, Error};

impl Tensor {
    /// Returns these lengths, one for each example of `x [batch, time, ..]`, as i64. A run in which one is
    /// negative or larger than the time dim is an error: it would silently be taken for 0 or for the
    /// whole sequence.
    #[track_caller]
    pub(crate) fn lengths_within(&self, kind: &str, x: &Tensor) -> Tensor {
        if self.is_poison() || x.is_poison() {
            return self.clone();
        }
        if self.rank() != 1 || !self.dtype().is_int() {
            let why = format!("expected integer lengths [batch], got {}{}", self.dtype(), self.shape());
            return self.fail(kind, Error::shape(why));
        }
        let lengths = self.with_dims_of(x, 1, "one length for each example");
        // Only the shape of the sum is used.
        let others: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let last = x.sum_axes(&others).iota_like(0, DType::I64) + 1.0;
        // All possible lengths, each of which is selected by itself. The scope names them in the error.
        let all = last.pad(&[1], &[0], &[0]);
        self.graph().scope("lengths", false, true, || all.gather(&lengths, 0))
    }
}
