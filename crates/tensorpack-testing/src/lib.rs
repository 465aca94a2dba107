//! For tensorpack's own tests: loads plugins, reports tests that are skipped, counts cases, and checks
//! messages.
//!
//! libtest cannot skip a test at run time, so a test that finds no plugin or tool passes. It calls
//! [`skip`] before it returns. That writes the test's name and the reason to standard error and to
//! the file named by `TENSORPACK_SKIPPED_TESTS`, which CI prints at its end. If the environment
//! variable of the [`Requirement`] is set, as in CI, the test fails instead.

mod cases;
mod mentions;
mod plugin;
mod skip;

pub use cases::test_cases;
pub use mentions::assert_mentions;
pub use plugin::plugin_for_tests;
pub use skip::{Requirement, opted_in, skip};
