//! Running a frozen graph: the session, its programs, and the engines that execute them.

mod bad_run;
mod binding;
pub mod cpu;
mod device;
mod executor;
mod faults;
mod hooked;
mod interrupt;
mod launched;
mod lowering;
mod memory_limit;
mod null;
mod reference;
mod session;
mod snapshot;
mod staging;
mod turns;
mod whereabouts;
mod xla;

pub use binding::Request;
pub use device::{Device, Platform, XLA_CPU_DEVICES};
pub use executor::{Executable, Executor, Feed, Fork, KernelTime, Outcome, Pending, RunInfo};
pub use hooked::{Cadence, Clock, Declared, HookedRun};
pub use interrupt::Interrupt;
pub use lowering::{Lowered, Source};
pub use memory_limit::available_memory;
pub(crate) use session::MAX_FEEDS;
pub use session::{IntoFetch, Prepared, Session, SessionOptions};
pub use staging::{Stage, Staging};
pub use tensorpack_kernels::Machine;
pub use turns::Turns;
pub use whereabouts::Whereabouts;
