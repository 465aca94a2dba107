//! Checkpointing and resuming a run: capture, restore, and the checks between.

use super::{Iteration, ranks};
use crate::callback::{Callbacks, Position, TrainState};
use crate::distributed::ProcessGroup;
use crate::graph::{Frozen, Precision, VariableInfo};
use crate::input::{InputSource, OtherTowers, Start};
use crate::io::{CapturedCheckpoint, Checkpoint, CheckpointWriter, check_tag};
use crate::runtime::CapturedValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};
use tensorpack_timeline as timeline;

/// The part of a checkpoint that lives on the host: everything but the variables. Cheap to capture.
pub(super) struct HostState {
    position: Position,
    json: Map<String, Value>,
    /// The tensors of the input's state.
    input_tensors: Vec<(String, HostTensor)>,
}

impl HostState {
    /// The state at this commit point.
    pub(super) fn capture(
        state: &TrainState,
        callbacks: &Callbacks,
        iteration: &dyn Iteration,
        input: Option<&dyn InputSource>,
    ) -> Result<HostState> {
        let position = state.position();
        let json = json!({
            "position": position.to_json(),
            "started": true,
            "run_index": state.session.run_index()?,
            "plain_runs": state.session.plain_runs()?,
            "skipped_steps": state.skipped.total,
            "skipped_in_a_row": state.skipped.in_a_row,
            "settings": state.settings,
            "options": state.task_options,
            "stop": state.stop_reason,
            "stop_criteria": callbacks.stop_criteria(),
            "input": input.map_or(Value::Null, |i| i.state()),
            "iteration": iteration.state(),
            "callbacks": callbacks.state(),
            "monitors": state.monitors.state(),
        });
        let input_tensors = input.map_or_else(|| Ok(Vec::new()), |i| i.state_tensors())?;
        // Moved, not copied: the state of callbacks and inputs may be large.
        let json = if let Value::Object(json) = json { json } else { Map::new() };
        Ok(HostState { position, json, input_tensors })
    }

    /// Marks the run as one that has not started: a resumed run starts it, with all hooks.
    pub(super) fn not_started(mut self) -> HostState {
        self.json.insert("started".into(), false.into());
        self
    }

    /// The whole checkpoint, with the variables of the session, which `capture` returns. `changed` are variables that
    /// were changed after this state was captured, with the values they had then.
    fn into_checkpoint(
        self,
        graph: &Frozen,
        changed: Vec<(String, HostTensor)>,
        mut capture: impl FnMut(&str) -> Result<CapturedValue>,
    ) -> Result<CapturedCheckpoint> {
        let mut changed: BTreeMap<String, HostTensor> = changed.into_iter().collect();
        let value = |v: &VariableInfo| match changed.remove(&v.name) {
            Some(value) => Ok(CapturedValue::OnHost(value)),
            None => capture(&v.name),
        };
        CapturedCheckpoint::new(graph, self.position.global_step, self.json, self.input_tensors, value)
    }
}

/// Begins to write the requested checkpoint, if one was requested.
pub(super) fn commit(
    state: &mut TrainState,
    callbacks: &Callbacks,
    iteration: &dyn Iteration,
    input: Option<&dyn InputSource>,
) -> Result<()> {
    let Some(request) = state.save_request.take() else {
        return state.checkpoints.as_mut().map_or(Ok(()), CheckpointWriter::check);
    };
    // Before anything is copied: there is at most one copy.
    state.checkpoints.as_mut().map_or(Ok(()), CheckpointWriter::join)?;
    let host = HostState::capture(state, callbacks, iteration, input)?;
    for (tag, site) in &request.tags {
        check_tag(tag).map_err(|e| e.at(*site))?;
    }
    let tags = request.tags.into_iter().map(|(tag, _)| tag).collect();
    write(state, host, Vec::new(), tags)
}

/// Begins to write a checkpoint of `host` and the variables; see [`HostState::into_checkpoint`] for `changed`. Waits
/// for the checkpoint before it, and returns its error. Syncs the monitors' files first: a resumed run relies on them.
///
/// Several processes wait until the checkpoint is complete.
pub(super) fn write(
    state: &mut TrainState,
    host: HostState,
    changed: Vec<(String, HostTensor)>,
    tags: Vec<String>,
) -> Result<()> {
    let _span = timeline::static_span("checkpoint", "copy the state for a checkpoint");
    if let Some(group) = state.group.clone() {
        return write_together(state, &group, host, changed, tags);
    }
    let TrainState { session, monitors, checkpoints: Some(writer), .. } = state else { return Ok(()) };
    writer.join()?;
    // Once for all of them: there is room for all, or none is kept.
    let place = session.capture_place()?;
    let capture = |name: &str| session.capture(name, place, writer.spare(name));
    let checkpoint = host.into_checkpoint(session.graph(), changed, capture)?;
    monitors.sync();
    writer.begin(checkpoint, tags)
}

/// Writes one checkpoint of several processes.
fn write_together(
    state: &mut TrainState,
    group: &Arc<ProcessGroup>,
    host: HostState,
    changed: Vec<(String, HostTensor)>,
    tags: Vec<String>,
) -> Result<()> {
    let session = &state.session;
    let stored = |name: &str| Ok(CapturedValue::OnHost(session.read_stored(name)?.0));
    let mut checkpoint = host.into_checkpoint(session.graph(), changed, stored)?.into_host()?;
    ranks::gather_variables(group, state, &mut checkpoint)?;
    if let Some(writer) = &mut state.checkpoints {
        state.monitors.sync();
        writer.save(checkpoint, tags)?;
    }
    // No rank goes on before the checkpoint is whole.
    ranks::after_save(group, state)
}

/// Continues the run of a checkpoint.
pub(super) fn restore(
    state: &mut TrainState,
    checkpoint: &Checkpoint,
    callbacks: &mut Callbacks,
    iteration: &mut dyn Iteration,
) -> Result<()> {
    let saved = &checkpoint.state;
    check_settings(state, &saved["settings"])?;
    checkpoint.restore(&state.session, |_| true).map_err(|e| another_run(state, e.to_string()))?;
    // To be compared with that of the first batch.
    if let Some(batch_size) = saved["settings"].get("batch_size") {
        state.settings.insert("batch_size".into(), batch_size.clone());
    }
    state.set_position(Position::from_json(&saved["position"])?);
    state.session.set_run_index(saved["run_index"].as_u64().unwrap_or(0))?;
    state.session.set_plain_runs(saved["plain_runs"].as_u64().unwrap_or(0))?;
    state.skipped.total = saved["skipped_steps"].as_u64().unwrap_or(0);
    state.skipped.in_a_row = saved["skipped_in_a_row"].as_u64().unwrap_or(0) as u32;
    // A callback that stopped the run meant this run, unless the run is now told to be longer or to
    // stop for another reason. Earlier versions did not save the criteria.
    let same_length = saved["settings"]["max_epoch"] == state.settings["max_epoch"];
    let criteria = &saved["stop_criteria"];
    let same_criteria = criteria.is_null() || *criteria == json!(callbacks.stop_criteria());
    if let Some(reason) = saved["stop"].as_str() {
        if same_length && same_criteria {
            state.stop_reason = Some(reason.into());
        } else {
            let what = if same_length { "the criterion for stopping" } else { "max_epoch" };
            log::info!("{what} changed: continuing the run that was stopped ({reason})");
        }
    }
    callbacks.load_state(&saved["callbacks"])?;
    // Earlier versions did not save it.
    if !saved["iteration"].is_null() {
        iteration.load_state(&saved["iteration"])?;
    }
    // Earlier versions saved only runs that had started.
    state.resumed = saved["started"].as_bool().unwrap_or(true);
    Ok(())
}

/// Warns about settings that differ from those of the resumed run. Another seed is another run, and an error; so
/// is a change from or to f16.
fn check_settings(state: &TrainState, saved: &Value) -> Result<()> {
    let mut changed = Vec::new();
    for (key, now) in &state.settings {
        let before = &saved[key];
        // Earlier versions saved fewer settings, and the size of the data may be unknown.
        if before == now || before.is_null() || now.is_null() {
            continue;
        }
        if key == "seed" {
            return Err(another_run(state, format!("its seed is {before}, not {now}")));
        }
        let f16 = Value::from(Precision::F16.name());
        if key == "precision" && (*before == f16 || *now == f16) {
            return Err(another_run(state, format!("its precision is {before}, not {now}"))
                .note("a run in f16 has a loss scale, which a run in another precision lacks"));
        }
        changed.push(format!("{key} {now} (was {before})"));
    }
    if !changed.is_empty() {
        log::warn!("resuming with changed settings: {}", changed.join("; "));
    }
    Ok(())
}

/// Warns about options that choose what is trained and that differ from those of the resumed run: data
/// and schedules may depend on them.
pub(super) fn warn_of_changed_options(state: &TrainState, checkpoint: &Checkpoint) {
    // Programs without `TrainArgs` have none, and earlier versions did not save them.
    let (Some(before), Some(now)) = (checkpoint.state["options"].as_object(), state.task_options.as_object())
    else {
        return;
    };
    let text = |value: Option<&Value>| value.map_or("not given".into(), Value::to_string);
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let changed: Vec<String> = names
        .into_iter()
        .map(|name| (name, before.get(name), now.get(name)))
        .filter(|(_, before, now)| before != now)
        .map(|(name, before, now)| format!("--{name} {} (was {})", text(now), text(before)))
        .collect();
    if !changed.is_empty() {
        log::warn!("resuming with changed options: {}", changed.join("; "));
    }
}

fn another_run(state: &TrainState, why: String) -> Error {
    let dir = state.logdir.as_deref().map_or_else(String::new, |d| d.display().to_string());
    Error::new(ErrorKind::Argument, format!("{dir} holds another run: {why}"))
        .note("start over with --fresh (`RunConfig::fresh`), or use another directory with --logdir")
}

/// Starts the input at the position of the run.
pub(super) fn start_input(
    state: &TrainState,
    input: &mut dyn InputSource,
    saved: Option<&Checkpoint>,
    others: OtherTowers,
    steps_per_launch: usize,
) -> Result<()> {
    let (at, tensors) = saved.map_or((&Value::Null, &[][..]), |c| (&c.state["input"], &c.input_tensors));
    if !at.is_null()
        && let Some(why) = input.cannot_resume()
    {
        log::warn!("this run does not resume exactly: {why}");
    }
    let staging = state.session.staging()?;
    let (seed, interrupt, staging) = (state.seed, &state.interrupt, staging.as_ref());
    input.start(Start { seed, at, tensors, interrupt, staging, others, steps_per_launch })
}
