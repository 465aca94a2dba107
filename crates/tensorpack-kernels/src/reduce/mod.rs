//! Fused reductions, cumulative sums and the check for NaN and infinity.

mod accumulate;
mod cumsum;
mod finite;
mod reduce;
mod state;

pub use cumsum::Cumsum;
pub use finite::{Extremes, all_finite, extremes};
pub use reduce::{Reduce, ReduceKind};
