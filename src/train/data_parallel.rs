//! Data-parallel training: towers minimize one cost on their own batches, with shared variables.

use super::single_cost::Setup;
use crate::graph::{Op, Tensor};
use crate::optim::{Gradient, apply_gradients, compute_gradients};
use crate::runtime::{Device, device_mismatch};
use crate::tower::{Mode, TowerContext};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The devices of the towers, one per tower.
#[derive(Clone, Debug)]
pub(super) struct Devices(Vec<Device>);

impl Devices {
    /// Returns `count` thread teams of this process, which share its cores.
    pub(super) fn teams(count: usize) -> Devices {
        Devices((0..count).map(Device::Cpu).collect())
    }

    pub(super) fn of(devices: impl IntoIterator<Item = Device>) -> Devices {
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

    /// Logs that variables are replicated if the devices cannot share them.
    pub(super) fn log_if_replicated(&self) {
        if let (Some(first), true) = (self.0.first(), self.count() > 1)
            && first.engine().is_ok_and(|engine| !engine.shares_variables())
        {
            log::info!(
                "variables are replicated: every device, starting with {first}, has a copy of all of them"
            );
        }
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

    /// Checks the device list (non-empty, one engine, and what that engine requires) and logs it.
    pub(super) fn check_and_log(&self) -> Result<()> {
        let Some(&first) = self.0.first() else {
            return Err(Error::argument("a trainer needs at least one device"));
        };
        if let Some((i, device)) = self.0.iter().enumerate().find(|(_, device)| !device.same_engine(first)) {
            return Err(device_mismatch(i, *device, first)
                .note("list only devices of one engine, such as cpu:0, cpu:1 or xla:cuda:0, xla:cuda:1"));
        }
        first.engine()?.check_towers(&self.0)?;
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

/// Builds a step: the gradients averaged over all towers, and one update of the shared variables.
pub(super) fn averaged_step(setup: &mut Setup<'_>, devices: &Devices, weights: Weights) -> Result<Op> {
    devices.check_and_log()?;
    let graph = setup.graph().clone();
    let total = devices.count();
    let mut averaged: Option<Vec<Gradient>> = None;
    for index in 0..total {
        let t = TowerContext::new(&graph, Mode::Training, index, total);
        let cost = setup.tower(&t)?;
        let cost = match weights {
            Weights::Equal => cost,
            Weights::Examples => weighted(&t, &setup.inputs(), &cost)?,
        };
        let gradients = compute_gradients(&cost)?;
        let gradients: Vec<Gradient> =
            t.build(|t| gradients.into_iter().map(|g| averaged_gradient(t, g)).collect());
        match &averaged {
            None => averaged = Some(gradients),
            Some(first) => same_variables(first, &gradients, index)?,
        }
    }
    let first = TowerContext::new(&graph, Mode::Training, 0, total);
    apply_gradients(&*setup.optimizer(&first), &graph, &averaged.unwrap_or_default())
}

/// Averages a gradient over the towers. If a tower times out here, the error points at the line
/// that created the variable.
fn averaged_gradient(t: &TowerContext, g: Gradient) -> Gradient {
    let site = g.variable.id.and_then(|id| t.graph().variable_info(id)).map(|v| v.site);
    let mean = || t.all_reduce_mean(&format!("average/{}", g.variable.name()), &g.value);
    let value = site.map_or_else(mean, |site| t.graph().on_line(site, mean));
    g.with_value(value)
}

/// Scales the cost by the tower's share of all examples, so that the mean over towers is the mean
/// over examples. It scales the cost and not the gradients, because gradients of synchronized
/// layers depend on the costs of all towers.
fn weighted(t: &TowerContext, inputs: &[Tensor], cost: &Tensor) -> Result<Tensor> {
    let batch = inputs.iter().find(|x| x.rank() > 0).ok_or_else(|| {
        Error::shape("weighted_by_batch needs an input with a batch dimension, but all inputs are scalars")
    })?;
    Ok(t.build(|t| {
        let batch = batch.cast(cost.dtype());
        let own = batch.count_per(&batch.sum_axes(&[0]));
        let all = t.all_reduce_sum("examples", &own);
        cost * (own * t.total() as f64 / all)
    }))
}

/// Checks that a tower has gradients of the same variables as the first: otherwise the all-reduces
/// would wait for each other.
fn same_variables(first: &[Gradient], other: &[Gradient], index: usize) -> Result<()> {
    let names = |gs: &[Gradient]| gs.iter().map(|g| g.variable.name().to_string()).collect::<Vec<_>>();
    let (first, other) = (names(first), names(other));
    if first == other {
        return Ok(());
    }
    let only = |a: &[String], b: &[String]| {
        a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>().join(", ")
    };
    Err(Error::new(ErrorKind::Graph, format!("tower {index} does not train the same variables as tower 0"))
        .note(format!("only tower 0: {}; only tower {index}: {}", only(&first, &other), only(&other, &first)))
        .note("a tower function must build the same model in every tower"))
}
