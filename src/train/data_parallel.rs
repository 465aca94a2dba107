//! Data-parallel training: towers minimize one cost on their own batches, with shared variables.

use super::average_gradients;
use super::single_cost::Setup;
use crate::distributed::ProcessGroup;
use crate::graph::{Op, Tensor};
use crate::optim::{apply_gradients, compute_gradients};
use crate::runtime::{Device, device_mismatch};
use crate::tower::TowerContext;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The devices of the towers, one per tower.
#[derive(Clone, Debug)]
pub(super) struct Devices(Vec<Device>);

impl Devices {
    /// Returns `count` thread teams of this process, which share its cores.
    pub(super) fn teams(count: usize) -> Devices {
        Devices((0..count).map(Device::Cpu).collect())
    }

    pub(super) fn new(devices: impl IntoIterator<Item = Device>) -> Devices {
        Devices(devices.into_iter().collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the device of the session, or `None` if the towers run on the default engine. The
    /// session then stays on the device of the configuration.
    pub(super) fn of_session(&self) -> Option<Device> {
        self.0.first().copied().filter(|device| !device.same_engine(Device::default()))
    }

    /// Returns whether processes need MPI to sum up the gradients of these devices. XLA has its own
    /// collectives.
    pub(super) fn need_mpi(&self) -> bool {
        !matches!(self.0.first(), Some(Device::Xla { .. }))
    }

    /// Returns an error if the engine cannot train asynchronously.
    pub(super) fn check_forks(&self) -> Result<()> {
        match self.of_session() {
            Some(device) if !device.engine()?.supports_forks() => {
                let why = format!("asynchronous training is not supported on {device}");
                Err(Error::new(ErrorKind::Unsupported, why)
                    .note("use SyncMultiGpuTrainerReplicated there, or train on thread teams (cpu:N)"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the device list: non-empty, one engine, and what that engine requires.
    pub(super) fn check(&self) -> Result<()> {
        let Some(&first) = self.0.first() else {
            return Err(Error::argument("a trainer needs at least one device"));
        };
        if let Some((i, device)) = self.0.iter().enumerate().find(|(_, device)| !device.same_engine(first)) {
            return Err(device_mismatch(i, *device, first)
                .note("list only devices of one engine, such as cpu:0, cpu:1 or xla:cuda:0, xla:cuda:1"));
        }
        first.engine()?.check_towers(&self.0)
    }

    /// [Checks](Devices::check) the device list and logs it.
    pub(super) fn check_and_log(&self) -> Result<()> {
        self.check()?;
        let names: Vec<String> = self.0.iter().map(Device::to_string).collect();
        log::info!("{} towers on {}", self.count(), names.join(", "));
        Ok(())
    }
}

/// How towers are weighted in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// Equally: the mean of the towers' means.
    Equal,
    /// By the number of examples in the batch: the mean over all examples.
    Examples,
}

/// How the update of the variables is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Updates {
    /// All processes and devices, all of them.
    Replicated,
    /// Each process or device its shard.
    Sharded,
}

/// Builds a step: the gradients averaged over all towers, in all processes of the group, and one
/// update of the shared variables.
pub(super) fn averaged_step(
    setup: &mut Setup<'_>,
    devices: &Devices,
    weights: Weights,
    updates: Updates,
    group: Option<&ProcessGroup>,
) -> Result<Op> {
    devices.check_and_log()?;
    let graph = setup.graph().clone();
    let (rank, size) = group.map_or((0, 1), |group| (group.rank(), group.size()));
    let wire = group.and_then(ProcessGroup::wire_dtype);
    let (here, total) = (rank * devices.count()..(rank + 1) * devices.count(), size * devices.count());
    let mut towers = Vec::new();
    for index in here.clone() {
        let t = TowerContext::in_process(&graph, index, total, here.clone()).wire_dtype(wire);
        let cost = setup.tower(&t)?;
        let cost = match weights {
            Weights::Equal => cost,
            Weights::Examples => weighted(&t, &setup.inputs(), &cost)?,
        };
        towers.push((t, compute_gradients(&cost)?));
    }
    let averages = average_gradients(towers)?;
    let first = TowerContext::in_process(&graph, here.start, total, here);
    let step = apply_gradients(&*setup.optimizer(&first), &graph, &averages)?;
    if updates == Updates::Sharded {
        graph.shard_updates();
    }
    Ok(step)
}

/// Scales the cost by the tower's share of all examples, so that the mean over towers is the mean
/// over examples. It scales the cost and not the gradients, because gradients of synchronized
/// layers depend on the costs of all towers.
///
/// A tower without examples has weight 0, and so have all towers if none has an example.
fn weighted(t: &TowerContext, inputs: &[Tensor], cost: &Tensor) -> Result<Tensor> {
    let batch = inputs.iter().find(|x| x.rank() > 0).ok_or_else(|| {
        Error::shape("weighted_by_batch needs an input with a batch dimension, but all inputs are scalars")
    })?;
    Ok(t.build(|t| {
        let first_of_each = |x: Tensor, axis: usize| x.slice_axis(axis as isize, 0, Some(1));
        let examples = (1..batch.rank()).fold(batch.cast(cost.dtype()), first_of_each);
        // A ratio to nothing counts the examples, and none are not an error.
        let own = examples.count_per(&examples.slice_axis(0, 0, Some(0)));
        let all = t.all_reduce_sum("examples", &own);
        cost * (own * t.total() as f64 / all.maximum(1.0))
    }))
}
