//! What the reference interpreter computes with: plain arrays of f64 and i64, and the context that
//! `OpDef::evaluate` of every operation gets.
//!
//! The interpreter is the root of the chain of truth. It shares no lowering and no kernel with the
//! engines: each operation is written a second time, from its definition, in its own file of `ops`.
//! The engine itself is `runtime/reference.rs`.

mod array;
mod evaluate;
mod rounding;
mod sum;

pub use array::{Array, Indices, Scalar};
pub use evaluate::EvaluateCx;
pub use rounding::StochasticRounding;
pub use sum::{Sum, Sums};
