//! Our own CPU engine: kernel IR in, results out, nothing to install.
//!
//! `pipeline` lists the compiler passes in order; each has a file of its own. `plan` places all buffers in one arena and
//! makes the kernels, and `engine` runs them again and again on a team of threads per tower.

mod upcast_bf16;
mod prepack_weights;
mod constant_folding;
mod dense_fetches;
mod fuse;
mod pool_grad_hoist;
mod interval;
mod overflow;
mod variables;
mod shared_variables;
mod commit;
mod snapshot;
mod pipeline;
mod arena;
mod panels;
mod placement;
mod finite_checks;
mod kernel_selection;
mod all_reduce;
mod epilogue;
mod row_kernel;
mod compiled_kernel;
mod describe;
mod emit;
mod plan;
mod tower_run;
mod engine;
mod tower_thread;
mod memory;

#[cfg(test)]
pub(super) use engine::compile;
pub use engine::{CpuOptions, cpu_executor};
pub use tensorpack_kernels::{Isa, Team};
