//! Several towers that minimise one cost together: each on a batch of its own, with one set of variables.

use super::single_cost::Setup;
use crate::graph::{Op, Tensor};
use crate::optim::{Gradient, apply_gradients, compute_gradients};
use crate::runtime::Device;
use crate::tower::{Mode, TowerContext};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The devices of the towers, one each.
#[derive(Clone, Debug)]
pub(super) struct Devices(Vec<Device>);

impl Devices {
    /// `count` thread teams of this process, which share its cores.
    pub(super) fn teams(count: usize) -> Devices {
        Devices((0..count).map(Device::Cpu).collect())
    }

    /// These.
    pub(super) fn of(devices: impl IntoIterator<Item = Device>) -> Devices {
        Devices(devices.into_iter().collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// What the session runs on, if that is more than teams of the CPU.
    pub(super) fn of_session(&self) -> Option<Device> {
        self.0.first().copied().filter(|device| !matches!(device, Device::Cpu(_)))
    }

    /// Says that variables are not shared where they cannot be.
    pub(super) fn say_if_replicated(&self) {
        if let (Some(device @ Device::Xla { .. }), true) = (self.of_session(), self.count() > 1) {
            log::info!("variables are replicated: each of the devices from {device} on has all of them");
        }
    }

    /// That there is one at least, that one engine has them all, none twice, and that XLA's are neighbours; says which
    /// they are.
    pub(super) fn announce(&self) -> Result<()> {
        let Some(first) = self.0.first() else {
            return Err(Error::argument("a trainer needs at least one device"));
        };
        let follows = |tower: usize, device: Device| match (*first, device) {
            (Device::Cpu(_), Device::Cpu(_))
            | (Device::Reference, Device::Reference)
            | (Device::Null, Device::Null) => true,
            (Device::Xla { platform, index }, Device::Xla { platform: other, index: i }) => {
                platform == other && i == index + tower
            }
            _ => false,
        };
        for (i, &device) in self.0.iter().enumerate() {
            if !follows(i, device) {
                let why = format!("tower {i} cannot run on {device} where the first runs on {first}");
                return Err(Error::argument(why).note(
                    "name thread teams (cpu:N) alone, or XLA devices in a row: xla:cuda:0, xla:cuda:1",
                ));
            }
            if matches!(device, Device::Cpu(_)) && self.0[..i].contains(&device) {
                let why = format!("each tower has a device of its own, but {device} is named twice");
                return Err(Error::argument(why));
            }
        }
        let names: Vec<String> = self.0.iter().map(Device::to_string).collect();
        log::info!("{} towers, on {}", self.count(), names.join(", "));
        Ok(())
    }
}

/// How much each tower counts in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// All alike: the mean of the towers' means.
    Equal,
    /// By the examples of its batch: the mean over all examples.
    Examples,
}

/// One step: every tower's gradients, averaged over the towers, and one update of the variables they share.
pub(super) fn averaged_step(setup: &mut Setup<'_>, devices: &Devices, weights: Weights) -> Result<Op> {
    devices.announce()?;
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

/// The mean of the towers' gradients. If one waits here in vain, the error points at the line that made the variable.
fn averaged_gradient(t: &TowerContext, g: Gradient) -> Gradient {
    let site = g.variable.id.and_then(|id| t.graph().variable_info(id)).map(|v| v.site);
    let mean = || t.all_reduce_mean(&format!("average/{}", g.variable.name()), &g.value);
    let value = site.map_or_else(mean, |site| t.graph().on_line(site, mean));
    g.with_value(value)
}

/// The cost times the tower's share of all examples, so that the mean over the towers is that over the examples. It is
/// the cost that is weighted, not its gradients: those of synchronised layers are of all towers' costs together.
fn weighted(t: &TowerContext, inputs: &[Tensor], cost: &Tensor) -> Result<Tensor> {
    let batch = inputs.iter().find(|x| x.rank() > 0).ok_or_else(|| {
        Error::shape("weighted_by_batch counts the examples of a batch, but no input has a dim for them")
    })?;
    Ok(t.build(|t| {
        let batch = batch.cast(cost.dtype());
        let own = batch.count_per(&batch.sum_axes(&[0]));
        let all = t.all_reduce_sum("examples", &own);
        cost * (own * t.total() as f64 / all)
    }))
}

/// That a tower has gradients of the same variables as the first: else the sums would wait for each other.
fn same_variables(first: &[Gradient], other: &[Gradient], index: usize) -> Result<()> {
    let names = |gs: &[Gradient]| gs.iter().map(|g| g.variable.name().to_string()).collect::<Vec<_>>();
    let (first, other) = (names(first), names(other));
    if first == other {
        return Ok(());
    }
    let only = |a: &[String], b: &[String]| {
        a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>().join(", ")
    };
    Err(Error::new(ErrorKind::Graph, format!("tower {index} trains other variables than tower 0"))
        .note(format!("only tower 0: {}; only tower {index}: {}", only(&first, &other), only(&other, &first)))
        .note("a tower function must build the same model in every tower"))
}
