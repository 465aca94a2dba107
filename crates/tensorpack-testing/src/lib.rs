//! For tensorpack's own tests: loads plugins, reports skipped tests, sets the number of cases,
//! checks messages, measures memory, and runs hosts with a slow network on this machine.
//!
//! libtest cannot skip a test at run time, so a test that finds no plugin or tool passes. It calls
//! [`skip`] before it returns. That writes the test's name and the reason to standard error and to
//! the file named by `TENSORPACK_SKIPPED_TESTS`, which CI prints at its end. If the environment
//! variable of the [`Requirement`] is set, as in CI, the test fails instead.

mod cases;
#[cfg_attr(not(target_os = "linux"), path = "no_hosts.rs")]
mod hosts;
mod mentions;
mod peak_allocator;
mod plugin;
mod skip;
#[cfg(target_os = "linux")]
mod small_disk;

pub use cases::test_cases;
pub use hosts::{Hosts, Link};
pub use mentions::assert_mentions;
pub use peak_allocator::PeakAllocator;
pub use plugin::plugin_for_tests;
pub use skip::{Requirement, opted_in, skip};
#[cfg(target_os = "linux")]
pub use small_disk::SmallDisk;
