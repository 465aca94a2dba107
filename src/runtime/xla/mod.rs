//! The XLA engine: prints programs as StableHLO, compiles them with a PJRT plugin, and runs each in
//! one launch on its device.
//!
//! StableHLO is printed from the kernel IR, whose kinds are few and closed, so a new operation
//! needs no code here. Fusion and memory planning are left to the compiler. See `docs/xla.md`.

mod argument_cache;
mod attention;
mod clients;
mod collectives;
mod compile;
mod compile_cache;
mod contract;
mod copy_room;
mod cumsum;
mod device;
mod device_profiler;
mod executor;
mod expr;
mod fixed_sums;
mod fork;
mod fused_attention;
mod gather;
mod host_times;
mod initial_values;
mod key_value_store;
mod launch;
mod module;
mod narrow;
mod nccl_flags;
mod nms;
mod peer_watch;
mod platform;
mod pool;
mod program;
mod random;
mod reduce;
mod replicas;
mod sort;
mod split_program;
mod spmd;
mod stablehlo;
mod staging;
mod steps_loop;
mod steps_program;
mod target;
#[cfg(test)]
mod test_ranks;
mod variables;
mod view;

pub(super) use device::XlaEngine;
#[cfg(test)]
pub(super) use executor::XlaExecutor;
pub use platform::{Platform, XLA_CPU_DEVICES};
#[cfg(test)]
pub(super) use target::XlaOptions;
