//! A trainer whose steps do nothing.

use super::single_cost::{Setup, Strategy};
use super::{Iteration, StepCx};
use crate::graph::{Fetch, Op};
use crate::tower::TowerContext;
use tensorpack_tensor::Result;

/// Builds the model but does not train it: every step is an empty run. Use it to run only the
/// callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOpTrainer;

impl NoOpTrainer {
    /// Creates the trainer.
    pub fn new() -> NoOpTrainer {
        NoOpTrainer
    }
}

impl Strategy for NoOpTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        setup.tower(&TowerContext::training(setup.graph()))?;
        Ok(setup.graph().group(&[]))
    }

    /// Unlike [`RunTrainOp`](super::RunTrainOp), accepts an operation that updates nothing.
    fn iteration(&self, step: Fetch) -> Box<dyn Iteration> {
        Box::new(move |cx: &mut StepCx<'_>| cx.run(&step).map(|_| ()))
    }
}
