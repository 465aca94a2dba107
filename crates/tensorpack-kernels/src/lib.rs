//! The CPU kernels of tensorpack: matrix multiplication, convolution, fused elementwise programs,
//! reductions, pooling, gather and scatter, cumulative sums, sorting, attention and copies.
//!
//! Kernels work on raw memory. They know dtypes, sizes and strides, and nothing of graphs: like a
//! oneDNN primitive, a kernel is a plain descriptor of sizes that is created once and run many
//! times. Every kernel has the same interface:
//!
//! - `check()` validates the sizes. Kernels built by a constructor from lists of sizes need no
//!   check.
//! - `chunks()` returns the number of independent chunks of work. The partition depends on the
//!   sizes alone, never on the number of threads, and each output element belongs to one chunk, so
//!   results have the same bits for any [`Team`]. Kernels with several `phases()` finish all chunks
//!   of a phase before the next phase.
//! - `scratch_bytes()` returns the bytes of scratch memory that each thread needs, and
//!   `shared_bytes()` those that all threads share. Kernels never allocate memory while they run.
//! - `run(isa, chunk, ...)` runs one chunk with the instructions of an [`Isa`]. [`Isa::Plain`] is
//!   the reference implementation: portable loops for every float type, which the vectorized
//!   kernels are tested against.
//!
//! # Example
//!
//! A small matrix product on one thread:
//!
//! ```
//! use tensorpack_kernels::{Bias, Contract, Isa, MatMul, Operands};
//! use tensorpack_tensor::DType;
//!
//! /// Scratch and shared memory must be aligned to cache lines.
//! #[derive(Clone)]
//! #[repr(align(64))]
//! struct Line([u8; 64]);
//!
//! let matmul = MatMul {
//!     batch: 1,
//!     m: 2,
//!     n: 2,
//!     k: 3,
//!     lhs_transposed: false,
//!     rhs_transposed: false,
//!     lhs_shared: false,
//!     rhs_shared: false,
//!     rhs_panels: false,
//!     threads: 1,
//! };
//! matmul.check()?;
//!
//! let lhs = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]; // 2 x 3
//! let rhs = [1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]; // 3 x 2
//! let mut out = [0.0f32; 4];
//! let mut shared = vec![Line([0; 64]); matmul.shared_bytes(DType::F32).div_ceil(64)];
//! let mut scratch = vec![Line([0; 64]); matmul.scratch_bytes(DType::F32).div_ceil(64)];
//! let operands = Operands {
//!     lhs: lhs.as_ptr(),
//!     rhs: rhs.as_ptr(),
//!     out: out.as_mut_ptr(),
//!     shared: shared.as_mut_ptr().cast(),
//!     bias: Bias::NONE,
//! };
//! for phase in 0..matmul.phases() {
//!     for chunk in 0..matmul.chunks(phase) {
//!         // SAFETY: the buffers have the sizes and alignment that `matmul` needs, chunks run one
//!         // at a time, and `Isa::detect` returns an instruction set of this CPU.
//!         unsafe {
//!             let bytes = scratch.len() * 64;
//!             let scratch = std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), bytes);
//!             matmul.run_f32(Isa::detect(), phase, chunk, operands, scratch, &mut |_block| ());
//!         }
//!     }
//! }
//! assert_eq!(out, [4.0, 5.0, 10.0, 11.0]);
//! # Ok::<(), tensorpack_tensor::Error>(())
//! ```
//!
//! # Modules
//!
//! - `gemm`: [`Contract`], the interface of contractions; [`MatMul`] with packing, blocking and the
//!   micro-kernel
//! - `conv`: [`Conv2d`] and its gradients, direct, by Winograd or by col2im; depthwise convolution
//! - `bf16`: [`Bf16Contract`], products and convolutions of bf16 with f32 sums
//! - `int8`: [`Int8Contract`], products and convolutions of 8-bit integers with exact sums
//! - [`expr`], `elementwise`: scalar expressions, and [`Map`], which runs one over every element,
//!   tile by tile
//! - `reduce`: [`Reduce`], [`Cumsum`], and the check for NaN and infinity ([`all_finite`])
//! - `pool`: max and average pooling ([`Pool`])
//! - `copy`: [`Copy`](struct@Copy), [`Concat`], [`Pad`]
//! - `gather`, `argsort`, `nms`: [`GatherScatter`], [`Argsort`], [`Nms`]
//! - `random`: uniform random numbers ([`Random`])
//! - `attention`: attention and its gradient without stored scores ([`Attention`])
//! - `team`: the thread team that runs chunks ([`Team`])
//! - `simd`: detection of instruction sets ([`Isa`], [`Bf16Isa`]), multiversioned loops, vectors
//!   for micro-kernels
//! - `scalar`: element types, conversions and math functions
//! - `roofline`: peak GFLOP/s and copy bandwidth of this machine ([`Roofline`])
//! - `partition`, `sizes`: partitions into chunks, and overflow checks of sizes

mod sync;
mod partition;
mod simd;
mod stall;
mod team;
mod roofline;
pub mod expr;
mod scalar;
mod gemm;
mod conv;
mod bf16;
mod int8;
mod elementwise;
mod reduce;
mod pool;
mod copy;
mod gather;
mod argsort;
mod nms;
mod random;
mod attention;
mod sizes;

pub use argsort::Argsort;
pub use attention::{Attention, AttentionPass};
pub use bf16::Bf16Contract;
pub use conv::{
    Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad, DepthwiseFilterGrad, DepthwiseForward,
    DepthwiseInputGrad,
};
pub use copy::{Concat, Copy, Pad};
pub use elementwise::{Map, Operand};
pub use gather::GatherScatter;
pub use gemm::{Bias, Block, Contract, FilterPacking, MatMul, Operands};
pub use int8::Int8Contract;
pub use nms::Nms;
pub use pool::Pool;
pub use random::Random;
pub use reduce::{Cumsum, Extremes, Reduce, ReduceKind, all_finite, extremes};
pub use roofline::Roofline;
pub use simd::{Bf16Isa, Isa};
pub use team::Team;
