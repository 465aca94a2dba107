//! One tower, one device.

use super::single_cost::{Setup, Strategy, feed};
use crate::graph::Op;
use crate::input::InputSource;
use crate::optim::minimize;
use crate::tower::TowerContext;
use tensorpack_dataflow::Flow;
use tensorpack_tensor::Result;

/// Trains one tower. A dataflow is read while the model waits, unless an input source says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimpleTrainer;

impl SimpleTrainer {
    /// The trainer.
    pub fn new() -> SimpleTrainer {
        SimpleTrainer
    }
}

/// One tower, minimised.
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
