//! Fused reductions, cumulative sums and the check for finite values.

mod accumulate;
mod cumsum;
mod finite;
mod reduce;
mod state;

pub use cumsum::Cumulate;
pub use finite::all_finite;
pub use reduce::{Reduce, ReduceKind};
