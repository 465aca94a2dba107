//! The per-channel bias, and the check that the number of channels is known.

use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;

/// Returns `y + b`, with a variable `b` of one element per channel, created in the current scope.
#[track_caller]
pub(super) fn add_bias(t: &TowerContext, y: &Tensor, channels: usize, init: &Init) -> Tensor {
    y + parameter(t, VariableSpec::new("b", [channels]).init(init.clone()), y)
}

/// Returns the size of the last dimension if it is known and the tensor has one of these ranks.
pub(super) fn channels(x: &Tensor, ranks: impl std::ops::RangeBounds<usize>) -> Option<usize> {
    x.shape().last().and_then(|d| d.known()).filter(|_| ranks.contains(&x.rank()))
}
