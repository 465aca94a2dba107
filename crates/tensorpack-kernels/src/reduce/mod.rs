//! Fused reductions, cumulative sums and the check for NaN and infinity.

mod accumulate;
mod cumsum;
mod finite;
mod fused_reduce;
mod state;

pub use cumsum::Cumsum;
pub use finite::{Extremes, all_finite, extremes};
pub use fused_reduce::{Reduce, ReduceKind};
