//! Updates that overflow while training on the CPU engine.

use crate::overflow_cases::Setup;
use tensorpack::prelude::*;
use tensorpack::train::SingleCostTrainer;

fn setups() -> [Setup; 3] {
    let simple: fn(usize) -> SingleCostTrainer = |_| SimpleTrainer::new().into();
    let sync: fn(usize) -> SingleCostTrainer = |towers| SyncMultiGpuTrainer::new(towers).into();
    [(1, simple), (2, sync), (3, sync)].map(|(towers, trainer)| Setup {
        device: Device::Cpu(0),
        towers,
        trainer,
    })
}

#[test]
fn training_stops_and_names_the_variable() {
    setups().iter().for_each(Setup::stops);
}

/// Repeated, because the towers search at the same time.
#[test]
fn the_error_names_the_tower_of_the_bad_batch() {
    for setup in setups().iter().filter(|setup| setup.towers > 1) {
        (0..5).for_each(|_| setup.names_the_tower());
    }
}

#[test]
fn a_step_that_overflows_can_be_skipped() {
    setups().iter().for_each(Setup::skips);
}

#[test]
fn the_last_good_checkpoint_is_kept() {
    setups().iter().for_each(Setup::keeps_the_last_checkpoint);
}
