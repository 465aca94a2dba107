//! The CPU loops of tensorpack: matrix products, convolutions, fused elementwise programs, reductions, pooling,
//! rows by number, running sums, orders and copies, over plain memory. Knows dtypes and sizes, and nothing of graphs.
//!
//! Every kernel is a plain description of sizes, checked once (`check`) before anything else is asked of it, with the same
//! three questions answered:
//! - `chunks()`: into how many pieces the work is cut. The cut depends on the sizes alone, never on the number of
//!   threads, and each output element belongs to one chunk, so results have the same bits for any team.
//! - `scratch()`: how many bytes of working memory a thread needs while it runs a chunk. Kernels never allocate.
//! - `run(isa, chunk, ...)`: does one chunk, with the instructions `isa` names. [`Isa::Plain`] is the reference:
//!   simple loops, for any float type, that the fast forms are tested against.

mod partition;
mod simd;
mod team;
mod roofline;
pub mod expr;
mod scalar;
mod gemm;
mod conv;
mod elementwise;
mod reduce;
mod pool;
mod copy;
mod gather;
mod argsort;
mod random;
mod sizes;

pub use argsort::Argsort;
pub use conv::{
    Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad, DepthwiseFilterGrad, DepthwiseForward,
    DepthwiseInputGrad,
};
pub use copy::{Concat, Copy, Pad};
pub use elementwise::{Map, Operand};
pub use gather::GatherScatter;
pub use gemm::{Bias, Block, Contract, MatMul, Operands};
pub use pool::Pool;
pub use random::Random;
pub use reduce::{Cumsum, Extremes, Reduce, ReduceKind, all_finite, extremes};
pub use roofline::Roofline;
pub use simd::Isa;
pub use sizes::MAX_ELEMENTS;
pub use team::Team;
