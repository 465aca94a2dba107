//! Instruction sets: detection at run time, loops compiled once per set, and vectors for
//! hand-written micro-kernels.

mod isa;
pub(crate) mod lanes;
pub(crate) mod per_isa;
pub(crate) mod subnormals;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use isa::Isa;
#[cfg(target_arch = "x86_64")]
pub(crate) use vector::Simd;
