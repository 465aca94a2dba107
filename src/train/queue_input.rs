//! One tower, with data read ahead.

use super::simple::one_tower;
use super::single_cost::{Setup, Strategy};
use crate::graph::Op;
use tensorpack_tensor::Result;

/// Trains one tower; a dataflow is read ahead in a thread of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueInputTrainer;

impl QueueInputTrainer {
    /// The trainer.
    pub fn new() -> QueueInputTrainer {
        QueueInputTrainer
    }
}

impl Strategy for QueueInputTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        one_tower(setup)
    }
}
