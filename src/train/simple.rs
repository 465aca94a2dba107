//! Trains one tower on one device.

use super::single_cost::{Setup, Strategy, feed};
use crate::graph::Op;
use crate::input::InputSource;
use crate::optim::minimize;
use crate::tower::TowerContext;
use tensorpack_dataflow::Flow;
use tensorpack_tensor::Result;

/// Trains one tower. Reads the dataflow without prefetching, unless an input source is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimpleTrainer;

impl SimpleTrainer {
    /// Creates the trainer.
    pub fn new() -> SimpleTrainer {
        SimpleTrainer
    }
}

/// Builds one tower and the operation that minimizes its cost.
pub(super) fn one_tower(setup: &mut Setup<'_>) -> Result<Op> {
    let t = TowerContext::training(setup.graph());
    let cost = setup.tower(&t)?;
    minimize(&cost, &*setup.optimizer(&t))
}

impl Strategy for SimpleTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        one_tower(setup)
    }

    fn default_input(&self, dataflow: Flow) -> Box<dyn InputSource> {
        feed(dataflow)
    }
}
