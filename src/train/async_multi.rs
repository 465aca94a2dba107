//! Asynchronous data-parallel training: towers update the variables they share, each at its own pace.

use super::Iteration;
use super::async_towers::AsyncTowers;
use super::data_parallel::Devices;
use super::single_cost::{Setup, Strategy};
use crate::graph::{Fetch, Op};
use crate::input::InputSource;
use crate::optim::{Gradient, apply_gradients, compute_gradients};
use crate::runtime::Device;
use crate::tower::TowerContext;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Each tower computes gradients on a snapshot of the variables and applies them at once, whatever the others did
/// meanwhile: nobody waits for anybody's step. What others did meanwhile is the *staleness* of an update, which goes to
/// `timing.jsonl` once an epoch, as `staleness/mean` and `staleness/max`.
///
/// A step is a step of the first tower; in an epoch of `n` steps every tower does `n`. No update happens while callbacks
/// look at variables, nor while a checkpoint is made. All towers run the graph that one call of the tower function built;
/// what callbacks fetch and run along, update operations too, goes with the first tower. With more than one tower the
/// numbers depend on the clock, so a resumed run goes on from where it was but not with the same bits.
#[derive(Clone, Debug)]
#[doc(alias = "AsyncMultiGPUTrainer")]
pub struct AsyncMultiGpuTrainer {
    devices: Devices,
    scale_gradient: bool,
}

impl AsyncMultiGpuTrainer {
    /// With this many towers, each on a thread team of this process; the teams share its cores.
    pub fn new(towers: usize) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { devices: Devices::teams(towers), scale_gradient: true }
    }

    /// With one tower on each of these devices.
    pub fn on(devices: impl IntoIterator<Item = Device>) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { devices: Devices::of(devices), scale_gradient: true }
    }

    /// Whether gradients are divided by the number of towers, so that all updates of a step together go as far as the one
    /// of a synchronous trainer. They are, unless said.
    #[must_use]
    pub fn scale_gradient(self, scale_gradient: bool) -> AsyncMultiGpuTrainer {
        AsyncMultiGpuTrainer { scale_gradient, ..self }
    }
}

impl Strategy for AsyncMultiGpuTrainer {
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
        self.devices.announce()?;
        if let Some(device @ Device::Xla { .. }) = self.devices.of_session() {
            let why = format!("asynchronous training does not run on {device}");
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("train with SyncMultiGpuTrainerReplicated there, or on thread teams (cpu:N)"));
        }
        if self.towers() > 1 {
            log::warn!("asynchronous training does not resume exactly: its numbers depend on the clock");
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
            true => {
                Err(Error::argument("asynchronous towers cannot share an input that is made in the graph")
                    .note("each would read at a position that another moves; train on a dataflow"))
            }
            false => Ok(()),
        }
    }
}
