//! Matrix multiplication, and the parts that all contractions share: the [`Contract`] trait,
//! packing, the micro-kernel, and products of blocks in cache.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod block_product;
#[cfg(target_arch = "x86_64")]
mod blocked;
pub(crate) mod contract;
mod matmul;
#[cfg(target_arch = "x86_64")]
pub(crate) mod microkernel;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack;

pub(crate) use contract::PairContract;
pub use contract::{Bias, Block, Contract, FilterPacking, Operands};
pub use matmul::MatMul;
