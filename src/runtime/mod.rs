//! Running a frozen graph: the session, its programs, and the engines that execute them.

mod binding;
mod captured_value;
pub mod cpu;
mod cse;
mod device;
mod device_profiler;
mod engine;
mod executor;
mod finiteness;
mod fit_memory;
mod in_flight;
mod interrupt;
mod kernel_progress;
mod lowering;
mod memory_limit;
#[cfg(test)]
mod mutated;
mod non_finite;
mod null;
mod num_gpu;
mod nvml;
mod overflow_rules;
mod overwritten;
mod recompute;
mod reference;
mod segments;
mod session;
mod several_steps;
mod shard_updates;
mod snapshot;
mod staging;
mod step_dump;
mod step_program;
mod tower_collectives;
mod unread;
mod update_turns;
mod value_errors;
mod xla;

pub use binding::Request;
pub(crate) use captured_value::CapturedValue;
#[cfg(unix)]
pub(crate) use cpu::tower_positions;
pub use device::Device;
pub use device_profiler::{DeviceEvents, DeviceProfiler};
pub(crate) use engine::device_mismatch;
pub use engine::{Engine, engines, register_engine};
pub use executor::{
    DeviceMemory, Executable, Executor, Feed, Fork, KernelTime, Outcome, Pending, PendingSteps, RunInfo,
    SavedValue, StepEnd, StepResult, StepsExecutable, StepsInfo,
};
pub use interrupt::Interrupt;
pub use kernel_progress::KernelProgress;
pub use lowering::{Lowered, Source};
pub use memory_limit::{available_memory, parse_bytes};
pub use num_gpu::get_num_gpu;
pub(crate) use nvml::Nvml;
pub(crate) use session::MAX_FEEDS;
pub use session::{IntoFetch, Prepared, Session, SessionOptions};
pub(crate) use several_steps::Launches;
pub use staging::{Stage, Staging};
pub use step_program::{Cadence, Clock, FetchHandle, StepProgram};
pub use tensorpack_kernels::Roofline;
pub use update_turns::Turns;
pub use xla::{Platform, XLA_CPU_DEVICES};

pub use crate::reference::StochasticRounding;
