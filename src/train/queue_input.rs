//! Trains one tower with prefetched data.

use super::simple::one_tower;
use super::single_cost::{Setup, Strategy};
use crate::graph::Op;
use tensorpack_tensor::Result;

/// Trains one tower. Prefetches the dataflow in a separate thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueInputTrainer;

impl QueueInputTrainer {
    /// Creates the trainer.
    pub fn new() -> QueueInputTrainer {
        QueueInputTrainer
    }
}

impl Strategy for QueueInputTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        one_tower(setup)
    }
}
