//! Real ranks: this program starts itself again under every `mpiexec` that is installed.
//!
//! `tensorpack plugin install mpi` installs one for the MPI 5 ABI; packages of the system, such as
//! Debian's `openmpi-bin` and `mpich`, the others.
#![cfg(target_os = "linux")]

mod launch;
mod collectives;
mod faults;

use launch::{Installation, ROLE};
use std::env;
use tensorpack_mpi::Abi;

/// In a rank's process: plays the role that the test asked for. Elsewhere does nothing.
#[test]
fn rank_process() {
    match env::var(ROLE).as_deref() {
        Ok("collectives") => collectives::run(),
        Ok("alone") => collectives::run_alone(),
        Ok("faults") => faults::run(),
        Ok(role) => panic!("unknown role {role}"),
        Err(_) => {}
    }
}

/// Tests of one binary interface.
macro_rules! for_each_interface {
    ($($module:ident: $abi:expr),+ $(,)?) => {
        $(
            mod $module {
                use super::*;

                #[test]
                fn collectives_move_the_right_bytes() {
                    for installation in Installation::all($abi) {
                        collectives::move_the_right_bytes(&installation);
                    }
                }

                #[test]
                fn a_killed_rank_is_an_error_within_the_deadline() {
                    for installation in Installation::all($abi) {
                        faults::killed(&installation);
                    }
                }

                #[test]
                fn a_stopped_rank_is_an_error_within_the_deadline() {
                    for installation in Installation::all($abi) {
                        faults::stopped(&installation);
                    }
                }

                #[test]
                fn a_known_failure_ends_a_wait_at_once() {
                    for installation in Installation::all($abi) {
                        faults::known_failure(&installation);
                    }
                }

                #[test]
                fn the_control_plane_names_a_killed_rank_at_once() {
                    for installation in Installation::all($abi) {
                        faults::named(&installation);
                    }
                }

                #[test]
                fn an_error_of_mpi_has_its_text() {
                    for installation in Installation::all($abi) {
                        faults::mismatch(&installation);
                    }
                }

                #[test]
                fn finalizing_does_not_wait_for_a_missing_rank() {
                    for installation in Installation::all($abi) {
                        faults::finalize(&installation);
                    }
                }
            }
        )+
    };
}

for_each_interface! {
    standard: Abi::Standard,
    open_mpi: Abi::OpenMpi,
    mpich: Abi::Mpich,
}

#[test]
fn a_launcher_of_another_mpi_is_an_error() {
    collectives::other_launcher();
}
