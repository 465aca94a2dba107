//! The arrays of the reference interpreter (f64 and i64), and the context of `OpDef::evaluate`.
//!
//! All engines are tested against the interpreter. It shares no lowering and no kernel with them:
//! each operation has a second implementation, from its definition, in its own file in `ops`. The
//! engine itself is `runtime/reference.rs`.

mod array;
mod evaluate;
mod rounding;
mod sum;

pub use array::{Array, Indices, Scalar};
pub use evaluate::EvaluateCx;
pub use rounding::StochasticRounding;
pub use sum::{Sum, Sums};
