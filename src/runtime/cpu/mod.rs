//! Our own CPU engine: kernel IR in, results out, nothing to install.
//!
//! A program goes through here in the order of this list: sums of bf16 are done in f32, convolutions by their
//! definition if that is asked for, weights of recurrent layers laid out
//! for their many readers, elementwise chains fused, updates of variables gathered into passes over slabs, buffers placed in
//! one arena, kernels made; then it is run, again and again, by a team of threads.

mod widen;
mod precision;
mod panels;
mod before_pooling;
mod fuse;
mod interval;
mod overflow;
mod variables;
mod sharing;
mod commit;
mod snapshot;
mod arena;
mod plan;
mod exchange;
mod epilogue;
mod row_work;
mod work;
mod tower_run;
mod engine;
mod conductor;
mod memory;

#[cfg(test)]
pub(super) use engine::compile;
pub use engine::{CpuOptions, cpu_executor};
pub use tensorpack_kernels::{Isa, Team};
