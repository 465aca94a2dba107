//! The first batch: the log line about how much data a step and an epoch take, and the comparison
//! with the run that is resumed.

use super::machine_roof;
use crate::nn;
use crate::runtime::{Device, Session, StepProgram};
use serde_json::{Map, Value};
use tensorpack_tensor::{HostTensor, Result};

/// Returns a table of the model for a batch, and the memory of the step, which it compiles. `saves`
/// tells whether checkpoints are written.
pub(super) fn describe_model(
    session: &Session,
    saves: bool,
    program: &mut StepProgram,
    feeds: &[(&str, &HostTensor)],
) -> Result<String> {
    let sizes: Vec<(&str, &[usize])> = feeds.iter().map(|(name, value)| (*name, value.sizes())).collect();
    let mut summary = nn::summary(session.graph(), &sizes)?;
    summary.planned_bytes = program.planned_bytes(session, feeds)?;
    summary.checkpoint_bytes = if saves { summary.variable_bytes } else { 0 };
    summary.multiply_adds_per_second = machine_roof::multiply_adds_per_second(session)?;
    Ok(summary.to_string())
}

/// How much the log says about the model before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Description {
    #[default]
    Nothing,
    /// Its parameters, and the memory of the step as far as the engine plans it.
    Totals,
    /// A table of its layers.
    Table,
}

/// Logs a description of the model. If something is wrong with the step, its run says so.
pub(super) fn log_model(
    description: Description,
    session: &Session,
    saves: bool,
    program: &mut StepProgram,
    feeds: &[(&str, &HostTensor)],
) {
    let text = match description {
        Description::Nothing => return,
        Description::Totals => describe_totals(session, saves, program, feeds),
        Description::Table => {
            describe_model(session, saves, program, feeds).map(|table| format!("the model\n{table}"))
        }
    };
    match text {
        Ok(text) => log::info!("{text}"),
        Err(e) => log::warn!("there is no summary of the model: {e}"),
    }
}

/// `the model has 836522 parameters; variables 10.04 MB, values of a step 34.12 MB, planned peak 44.16 MB`.
fn describe_totals(
    session: &Session,
    saves: bool,
    program: &mut StepProgram,
    feeds: &[(&str, &HostTensor)],
) -> Result<String> {
    let graph = session.graph();
    // Other engines plan memory when they compile, and may compile a step in another way.
    let planned = match session.options().device {
        Device::Cpu(_) => program.planned_bytes(session, feeds)?,
        _ => None,
    };
    let variables = nn::variable_bytes(graph);
    let memory = nn::memory_text(variables, if saves { variables } else { 0 }, planned);
    Ok(format!("the model has {} parameters; {memory}", nn::parameter_count(graph)))
}

/// How towers and epochs divide the data, for the log line of the first batch.
#[doc(alias = "Opening")]
pub(super) struct BatchSummary {
    /// Number of towers that share one read of the input.
    pub(super) towers: usize,
    /// Number of such groups that run independently: 1, or the number of asynchronous towers.
    pub(super) groups: usize,
    pub(super) steps_per_epoch: u64,
    /// Batches in one pass over the data, if known.
    pub(super) pass: Option<u64>,
    /// Whether the run that is resumed had as many batches in a pass.
    pub(super) same_pass: bool,
}

impl BatchSummary {
    /// `batch 128 = 1 tower x 128; an epoch is 468 steps, 468 batches, 1.00 passes over the data`.
    pub(super) fn text(&self, batch: &[(String, HostTensor)]) -> String {
        let BatchSummary { towers, groups, steps_per_epoch: steps, pass, .. } = *self;
        let inputs = (batch.len() / towers.max(1)).max(1);
        let rows = batch.iter().step_by(inputs).map(|(_, value)| value.sizes().first().copied().unwrap_or(1));
        let rows: Vec<usize> = rows.collect();
        let each = rows.first().copied().unwrap_or(0);
        let total = rows.iter().sum::<usize>() * groups;
        let towers = towers * groups;
        let batches = steps * towers as u64;
        let passes = pass
            .filter(|n| *n > 0)
            .map_or_else(String::new, |n| format!(", {:.2} passes over the data", batches as f64 / n as f64));
        let s = if towers == 1 { "" } else { "s" };
        format!(
            "batch {total} = {towers} tower{s} x {each}; an epoch is {steps} steps, {batches} batches{passes}"
        )
    }

    /// Records the batch size in the settings of the run, which checkpoints hold. Warns if they
    /// have another one, that of the run that is resumed.
    pub(super) fn record_batch_size(
        &self,
        settings: &mut Map<String, Value>,
        batch: &[(String, HostTensor)],
    ) {
        let Some(now) = batch.iter().find_map(|(_, value)| value.sizes().first().copied()) else { return };
        let now = now as u64;
        if let Some(before) = settings.get("batch_size").and_then(Value::as_u64) {
            // The last batch of a pass may be smaller.
            if now == before || (now < before && self.same_pass) {
                return;
            }
            log::warn!("resuming with changed data: batch_size {now} (was {before})");
        }
        settings.insert("batch_size".into(), now.into());
    }
}
