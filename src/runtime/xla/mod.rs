//! The XLA engine: programs are written as StableHLO, compiled by a PJRT plugin, and run in one launch on its device.
//!
//! The text is written from the kernel IR, whose kinds are few and closed: a new operation costs this engine no line.
//! Nothing is fused or planned here; that is the compiler's work. See `docs/xla.md`.

mod spmd;
mod clients;
mod compile;
mod contract;
mod device;
mod executor;
mod expr;
mod launch;
mod module;
mod narrow;
mod platform;
mod pool;
mod program;
mod random;
mod reduce;
mod rows;
mod sent;
mod staged;
mod target;
mod text;
mod towers;
mod variables;
mod view;

pub(super) use device::XlaEngine;
#[cfg(test)]
pub(super) use executor::XlaExecutor;
pub use platform::{Platform, XLA_CPU_DEVICES};
#[cfg(test)]
pub(super) use target::XlaOptions;
