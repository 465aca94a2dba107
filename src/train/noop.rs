//! Steps that do nothing.

use super::single_cost::{Setup, Strategy};
use crate::graph::Op;
use crate::tower::TowerContext;
use tensorpack_tensor::Result;

/// Builds the model and trains nothing: every step is an empty hooked run. For running callbacks alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOpTrainer;

impl NoOpTrainer {
    /// The trainer.
    pub fn new() -> NoOpTrainer {
        NoOpTrainer
    }
}

impl Strategy for NoOpTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        setup.tower(&TowerContext::training(setup.graph()))?;
        Ok(setup.graph().group(&[]))
    }
}
