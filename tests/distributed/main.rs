//! Distributed training with real processes: this binary starts itself again as the ranks of a run,
//! with the `mpiexec` of every MPI that is installed.
//!
//! The normal run draws a sample of all combinations of faults, places, ranks and MPI libraries.
//! `TENSORPACK_TEST_FAULTS=all` runs every fault at every place with one of the libraries, which
//! takes about 11 minutes on two cores, and prints a table with counts. Another seed has another
//! library for each, so three seeds cover all of them.
//!
//! ```sh
//! TENSORPACK_TEST_FAULTS=all cargo test --test distributed -- --nocapture
//! ```
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TENSORPACK_TEST_FAULTS` | the number of faults to draw, or `all` | 6 |
//! | `TENSORPACK_TEST_FAULT` | runs the faults whose name contains this, such as `Kill/Save/0` | |
//! | `TENSORPACK_TEST_SEED` | the seed of the sample, and of the library for each fault | 0 |
#![cfg(target_os = "linux")]

mod task;
mod fault;
mod models;
mod one_sided;
mod program;
mod sample;
mod launch;
mod alone;
mod bits;
mod differences;
mod faults;
mod full_disk;
mod log_directory;
mod network;
mod not_finite;
mod restarts;
mod sharded;
mod stops;
mod strangers;

/// In the process of a rank: trains. Elsewhere does nothing.
#[test]
fn rank_process() {
    program::run();
}
