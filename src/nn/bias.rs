//! What layers of many kinds have in common: a bias for each channel, and channels that must be known.

use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;

/// `y + b`, with a number of `name` for each of the last dim's `channels`, made in the current scope.
#[track_caller]
pub(super) fn add_bias(t: &TowerContext, y: &Tensor, channels: usize) -> Tensor {
    y + parameter(t, VariableSpec::new("b", [channels]).init(Init::zeros()), y)
}

/// The size of the last dim, if it is known and the tensor has one of these ranks.
pub(super) fn channels(x: &Tensor, ranks: impl std::ops::RangeBounds<usize>) -> Option<usize> {
    x.shape().last().and_then(|d| d.known()).filter(|_| ranks.contains(&x.rank()))
}
