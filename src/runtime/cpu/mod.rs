//! The embedded CPU engine, which compiles and runs kernel IR without anything to install.
//!
//! `pipeline` lists the compiler passes in order; each has its own file. `plan` is the result of
//! compilation: `placement` puts all buffers in one arena, `kernel_selection` picks the CPU
//! kernels, and `emit` makes the steps. `engine` runs plans, with a team of threads for each tower.

mod upcast_narrow;
mod prepack_weights;
mod constant_folding;
mod contract_kernel;
mod dense_fetches;
mod fuse;
mod pool_grad_hoist;
mod interval;
mod overflow;
mod variables;
mod packed_filters;
mod shared_variables;
mod commit;
mod snapshot;
mod pipeline;
mod arena;
mod panels;
mod placement;
mod finite_checks;
mod kernel_selection;
mod tower_positions;
mod all_reduce;
mod exchange;
mod epilogue;
mod row_kernel;
mod compiled_kernel;
mod describe;
mod emit;
mod plan;
mod tower_run;
mod engine;
mod device;
mod tower_thread;
mod memory;

pub(super) use device::CpuEngine;
#[cfg(test)]
pub(super) use engine::compile;
pub use engine::{CpuOptions, cpu_executor};
pub use tensorpack_kernels::{Bf16Isa, Isa, Team};
pub(crate) use tower_positions::tower_positions;
