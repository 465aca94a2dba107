//! For tensorpack's own tests: loads plugins, and reports tests that are skipped.
//!
//! libtest cannot skip a test at run time, so a test that finds no plugin or tool passes. It calls
//! [`skip`] before it returns. That writes the test's name and the reason to standard error and to
//! the file named by `TENSORPACK_SKIPPED_TESTS`, which CI prints at its end. If the environment
//! variable of the [`Requirement`] is set, as in CI, the test fails instead.

mod plugin;
mod skip;

pub use plugin::plugin_for_tests;
pub use skip::{Requirement, opted_in, skip};
