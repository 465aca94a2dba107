//! Asynchronous data-parallel training: towers update shared variables independently.

use super::Iteration;
use super::async_towers::AsyncTowers;
use super::data_parallel::Devices;
use super::single_cost::{Setup, Strategy};
use crate::graph::{Fetch, Op, Precision};
use crate::input::InputSource;
use crate::optim::{Gradient, apply_gradients, compute_gradients};
use crate::runtime::Device;
use crate::tower::TowerContext;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Trains towers asynchronously: each computes gradients on a snapshot of the variables and applies
/// them at once, without waiting for the other towers. The number of updates that others applied in
/// between is the *staleness* of an update. It is written to `timing.jsonl` once per epoch, as
/// `staleness/mean` and `staleness/max`.
///
/// A step is a step of the first tower; in an epoch of `n` steps every tower runs `n`. No update
/// happens while callbacks run or while a checkpoint is written. All towers run the graph that one
/// call of the tower function built. The fetches and operations of callbacks, including update
/// operations, run with the first tower. With more than one tower the results depend on timing, so
/// a resumed run continues from the checkpoint but is not bit-identical.
#[derive(Clone, Debug)]
#[doc(alias = "AsyncMultiGPUTrainer")]
pub struct AsyncMultiGpuTrainer {
    devices: Devices,
    scale_gradient: bool,
}

impl AsyncMultiGpuTrainer {
    /// Uses this many towers, each on a thread team of this process. The teams share its cores.
    pub fn new(towers: usize) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { devices: Devices::teams(towers), scale_gradient: true }
    }

    /// Uses one tower on each of these devices.
    pub fn on(devices: impl IntoIterator<Item = Device>) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { devices: Devices::new(devices), scale_gradient: true }
    }

    /// Applies gradients as they are. By default they are divided by the number of towers, so that
    /// the updates of all towers in a step add up to one update of a synchronous trainer.
    #[must_use]
    #[doc(alias = "scale_gradient")]
    pub fn no_gradient_scaling(self) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { scale_gradient: false, ..self }
    }
}

impl Strategy for AsyncMultiGpuTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        self.devices.check_and_log()?;
        self.devices.check_forks()?;
        if setup.graph().precision() == Precision::F16 {
            let why = "asynchronous towers do not train in f16: they would share one loss scale";
            return Err(Error::new(ErrorKind::Unsupported, why).note("use bf16, or a synchronous trainer"));
        }
        if self.towers() > 1 {
            log::warn!("asynchronous training does not resume bit-identically: its results depend on timing");
        }
        let t = TowerContext::training(setup.graph());
        let cost = setup.tower(&t)?;
        let mut gradients = compute_gradients(&cost)?;
        if self.scale_gradient && self.towers() > 1 {
            let share = 1.0 / self.towers() as f64;
            let scaled = |g: Gradient| {
                let value = &g.value * share;
                g.with_value(value)
            };
            gradients = gradients.into_iter().map(scaled).collect();
        }
        apply_gradients(&*setup.optimizer(&t), setup.graph(), &gradients)
    }

    fn iteration(&self, step: Fetch) -> Box<dyn Iteration> {
        Box::new(AsyncTowers::new(step, self.towers()))
    }

    fn towers(&self) -> usize {
        self.devices.count()
    }

    fn device(&self) -> Option<Device> {
        self.devices.of_session()
    }

    fn check_input(&self, input: &dyn InputSource) -> Result<()> {
        match self.towers() > 1 && input.in_graph() {
            true => Err(Error::argument(
                "asynchronous towers cannot share an input that is computed in the graph",
            )
            .note("each tower would advance the read position of the others; train on a dataflow")),
            false => Ok(()),
        }
    }
}
