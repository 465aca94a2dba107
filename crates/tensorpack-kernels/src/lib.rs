//! The CPU loops of tensorpack: matrix products, convolutions, fused elementwise programs, reductions, pooling,
//! rows by number, running sums, orders and copies, over plain memory. Knows dtypes and sizes, and nothing of graphs.
//!
//! Every kernel is a plain description of sizes with the same three questions answered:
//! - `chunks()`: into how many pieces the work is cut. The cut depends on the sizes alone, never on the number of
//!   threads, and each output element belongs to one chunk, so results have the same bits for any team.
//! - `scratch()`: how many bytes of working memory a thread needs while it runs a chunk. Kernels never allocate.
//! - `run(isa, chunk, ...)`: does one chunk, with the instructions `isa` names. [`Isa::Plain`] is the reference:
//!   simple loops, for any float type, that the fast forms are tested against.

mod accumulate;
mod addend;
mod concat;
mod contract;
mod conv2d;
mod copy;
mod correlation;
mod cumulate;
mod depthwise;
mod depthwise_filter;
mod element;
pub mod expr;
mod filter_grad;
mod finite;
mod isa;
mod lanes;
mod lookup;
mod machine;
mod map;
mod math;
mod matmul;
mod number;
mod order;
mod pad;
mod per_isa;
mod pool;
mod random;
mod reduce;
mod space;
mod state;
mod split;
mod squares;
mod steps;
mod subnormals;
mod team;
mod tile_program;
mod transpose;
mod winograd;
mod winograd_filter;

#[cfg(target_arch = "x86_64")]
mod blocked;
#[cfg(target_arch = "x86_64")]
mod filter_sums;
#[cfg(target_arch = "x86_64")]
mod panel;
#[cfg(target_arch = "x86_64")]
mod scatter;
#[cfg(target_arch = "x86_64")]
mod simd;
#[cfg(target_arch = "x86_64")]
mod slide;
#[cfg(target_arch = "x86_64")]
mod slide_filter;
#[cfg(target_arch = "x86_64")]
mod sliding;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod window;

pub use concat::Concat;
pub use contract::{Bias, Contract, Operands};
pub use conv2d::{Conv2d, Conv2dForward, Conv2dInputGrad};
pub use copy::Copy;
pub use cumulate::Cumulate;
pub use depthwise::{DepthwiseForward, DepthwiseInputGrad};
pub use depthwise_filter::DepthwiseFilterGrad;
pub use filter_grad::Conv2dFilterGrad;
pub use finite::{Extremes, all_finite, extremes};
pub use isa::Isa;
pub use lookup::Lookup;
pub use machine::Machine;
pub use map::{Map, Operand};
pub use matmul::MatMul;
pub use order::Order;
pub use pad::Pad;
pub use pool::Pool;
pub use random::Random;
pub use reduce::{Reduce, ReduceKind};
pub use team::Team;

/// A rectangle of a kernel's output seen as a matrix: for a matrix product the output itself, for a convolution
/// pixels by channels. Kernels report each rectangle as it becomes final, while it is still in cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of the matrix.
    pub rows: std::ops::Range<usize>,
    /// Columns of the matrix.
    pub cols: std::ops::Range<usize>,
}
