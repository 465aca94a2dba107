//! The arrays of the reference interpreter (f64 and i64), and the context of `OpDef::evaluate`.
//!
//! The interpreter is the root of the chain of truth. It shares no lowering and no kernel with the
//! engines: each operation has a second implementation, from its definition, in its own file in
//! `ops`. The engine itself is `runtime/reference.rs`.

mod array;
mod evaluate;
mod rounding;
mod sum;

pub use array::{Array, Indices, Scalar};
pub use evaluate::EvaluateCx;
pub use rounding::StochasticRounding;
pub use sum::{Sum, Sums};
