//! Instruction sets: detection at run time, loops compiled once per set, and vectors for
//! hand-written micro-kernels.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod bf16_isa;
#[cfg(target_arch = "x86_64")]
mod bf16_pairs;
mod isa;
pub(crate) mod lanes;
pub(crate) mod per_isa;
pub(crate) mod subnormals;
#[cfg(target_arch = "x86_64")]
mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::TileConfig;
pub use bf16_isa::Bf16Isa;
#[cfg(target_arch = "x86_64")]
pub(crate) use bf16_pairs::{Pairs256, Pairs512};
pub use isa::Isa;
#[cfg(target_arch = "x86_64")]
pub(crate) use vector::Simd;
