//! A run that goes on: what can be saved of it, and how it is taken up again.

use super::position::Position;
use super::step::{HookedOps, NanCount, Opening};
use crate::callback::{Callbacks, Run};
use crate::graph::Fetch;
use crate::input::{InputSource, Start};
use crate::io::{Checkpoint, CheckpointStore};
use serde_json::{Map, Value, json};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// What training consists of once the session is there.
pub(super) struct Live {
    pub(super) run: Run,
    pub(super) ops: HookedOps,
    /// Applies gradients that were gathered and not yet used, at the end of training.
    pub(super) flush: Option<Fetch>,
    pub(super) nan: NanCount,
    /// What is to be said with the first batch.
    pub(super) opening: Option<Opening>,
    /// Where checkpoints go, if anywhere.
    pub(super) store: Option<CheckpointStore>,
    pub(super) at: Position,
    /// What this run was told, as text, to compare with what it is told when it resumes.
    pub(super) settings: Map<String, Value>,
}

impl Live {
    /// Everything, as it is now.
    pub(super) fn checkpoint(
        &self,
        callbacks: &Callbacks,
        input: Option<&dyn InputSource>,
        at: Position,
    ) -> Result<Checkpoint> {
        let session = &self.run.session;
        let state = json!({
            "position": at.to_json(),
            "run_index": session.run_index()?,
            "skipped_steps": self.nan.total,
            "skipped_in_a_row": self.nan.in_a_row,
            "settings": self.settings,
            "stop": self.run.stop,
            "input": input.map_or(Value::Null, |i| i.state()),
            "callbacks": callbacks.state(),
            "monitors": self.run.monitors.state(),
        });
        let state = state.as_object().cloned().unwrap_or_default();
        Checkpoint::capture(session, at.global_step, state, |_| true)
    }

    /// Writes the checkpoint that was asked for, if one was.
    pub(super) fn commit(
        &mut self,
        callbacks: &Callbacks,
        input: Option<&dyn InputSource>,
        at: Position,
    ) -> Result<()> {
        let Some(request) = self.run.save.take() else { return Ok(()) };
        if self.store.is_none() {
            return Ok(());
        }
        let checkpoint = self.checkpoint(callbacks, input, at)?;
        let tags: Vec<&str> = request.tags.iter().map(String::as_str).collect();
        self.write(&checkpoint, &tags)
    }

    /// Writes a checkpoint. What monitors wrote is made safe first: a resumed run relies on it.
    pub(super) fn write(&mut self, checkpoint: &Checkpoint, tags: &[&str]) -> Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        self.run.monitors.sync();
        let folder = store.save(checkpoint, tags)?;
        log::info!("saved {}", folder.display());
        Ok(())
    }

    /// Takes up the run where a checkpoint left it.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint, callbacks: &mut Callbacks) -> Result<()> {
        let state = &checkpoint.state;
        self.check_settings(&state["settings"])?;
        checkpoint.restore(&self.run.session, |_| true).map_err(|e| self.another_run(e.to_string()))?;
        self.at = Position::from_json(&state["position"])?;
        self.run.session.set_run_index(state["run_index"].as_u64().unwrap_or(0))?;
        self.nan.total = state["skipped_steps"].as_u64().unwrap_or(0);
        self.nan.in_a_row = state["skipped_in_a_row"].as_u64().unwrap_or(0) as u32;
        // Who stopped it meant this run, unless it is now told to be longer.
        let as_long = state["settings"]["max_epoch"] == self.settings["max_epoch"];
        self.run.stop = state["stop"].as_str().filter(|_| as_long).map(String::from);
        callbacks.load_state(&state["callbacks"])?;
        self.run.resumed = true;
        Ok(())
    }

    /// Prints what differs from the run that is resumed; another seed is another run.
    fn check_settings(&self, saved: &Value) -> Result<()> {
        let mut other = Vec::new();
        for (key, now) in &self.settings {
            let before = &saved[key];
            if before == now || before.is_null() {
                continue;
            }
            if key == "seed" {
                return Err(self.another_run(format!("its seed is {before}, and this one's {now}")));
            }
            other.push(format!("{key} {now}, before {before}"));
        }
        if !other.is_empty() {
            log::warn!("resuming with other settings: {}", other.join("; "));
        }
        Ok(())
    }

    fn another_run(&self, why: String) -> Error {
        let dir = self.run.logdir.as_deref().map_or_else(String::new, |d| d.display().to_string());
        Error::new(ErrorKind::Argument, format!("{dir} holds another run: {why}"))
            .note("begin anew there with --fresh (`TrainConfig::fresh`), or elsewhere with --logdir")
    }

    /// Starts the input where the run is.
    pub(super) fn start_input(&self, input: &mut dyn InputSource, saved: &Value) -> Result<()> {
        if !saved.is_null()
            && let Some(why) = input.cannot_resume()
        {
            log::warn!("this run does not resume exactly: {why}");
        }
        let staging = self.run.session.staging()?;
        let (seed, interrupt) = (self.run.seed, &self.run.interrupt);
        input.start(Start { seed, at: saved, interrupt, staging: staging.as_ref() })
    }
}
