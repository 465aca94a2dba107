//! The only loop over epochs and steps.

use super::batch_summary::{BatchSummary, Description};
use super::ranks::Ranks;
use super::rerun::Rerun;
use super::resume::{self, HostState};
use super::step::{Iteration, NanPolicy, StepCx, Times};
use super::step_plan::StepPlan;
use crate::callback::{Callbacks, Doing, TrainCx, TrainState};
use crate::graph::{Fetch, GLOBAL_STEP};
use crate::input::InputSource;
use crate::io::CheckpointWriter;
use crate::monitor::RunEnd;
use crate::optim::{LOSS_SCALE, SKIPPED_STEPS};
use crate::terminal::Activity;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};
use tensorpack_timeline::{self as timeline, Label, Name};

/// How training ended, if not by an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs are done.
    Finished,
    /// A callback or the iteration stopped it, for this reason.
    Stopped(String),
    /// This signal ended it.
    Interrupted(i32),
}

/// How far a step got.
enum StepOutcome {
    Done,
    /// A signal came before the step changed anything.
    NotBegun,
    /// A signal came after the step had taken a batch, but before it changed a variable.
    Compiling,
    /// A signal came after the step had changed something.
    Partial,
}

/// Runs all epochs from the current position on.
pub(super) struct MainLoop<'a> {
    pub(super) state: &'a mut TrainState,
    pub(super) plan: StepPlan,
    pub(super) callbacks: &'a mut Callbacks,
    pub(super) input: Option<Box<dyn InputSource>>,
    pub(super) iteration: &'a mut dyn Iteration,
    pub(super) nan_policy: NanPolicy,
    /// The processes that train together, if there are several.
    pub(super) ranks: Option<Ranks>,
    /// Logged with the first batch.
    pub(super) summary: Option<BatchSummary>,
    /// What is logged about the model with the first batch.
    pub(super) description: Description,
    /// Applies gradients that are accumulated but not yet used, at the end of training.
    pub(super) flush: Option<Fetch>,
    /// Whether the graph has a variable that holds the number of the step.
    pub(super) counts_in_graph: bool,
    /// What to do instead of training, if anything.
    pub(super) rerun: Option<Rerun>,
    /// Whether no step has run yet. The first one compiles.
    pub(super) is_first_step: bool,
}

impl MainLoop<'_> {
    pub(super) fn run(&mut self) -> Result<Ended> {
        self.callbacks.publish_place();
        let ended = self.epochs();
        // Before the callbacks: they may use the last checkpoint.
        let ended = self.join_writer(ended);
        if ended.is_ok() {
            self.set_activity("callbacks after training");
        }
        // However training ended, everyone gets to clean up; the first cause is the one to report.
        self.state.save_request = None;
        let after = self.callbacks.after_train(&mut TrainCx { state: self.state });
        let saved = match (&ended, &after) {
            (Ok(Ended::Finished | Ended::Stopped(_)), Ok(())) => {
                self.share_decisions().and_then(|()| self.commit())
            }
            _ => {
                self.drop_save_request();
                Ok(())
            }
        };
        let saved = self.join_writer(saved);
        self.state.monitors.set_end(match (&ended, &after, &saved) {
            (Ok(Ended::Interrupted(_)), ..) => RunEnd::Interrupted,
            (Ok(_), Ok(()), Ok(())) => RunEnd::Finished,
            _ => RunEnd::Failed,
        });
        self.state.monitors.finish();
        if let Some(input) = &mut self.input {
            input.stop();
        }
        let ended = ended?;
        after.and(saved)?;
        Ok(ended)
    }

    /// Waits until the checkpoint that is being written is complete. Its error ends a run that has no other.
    fn join_writer<T>(&mut self, so_far: Result<T>) -> Result<T> {
        let written = self.state.checkpoints.as_mut().map_or(Ok(()), CheckpointWriter::join);
        match (&so_far, written) {
            (Ok(_), Err(e)) => return Err(e),
            (Err(_), Err(e)) => log::error!("{e}"),
            (_, Ok(())) => {}
        }
        so_far
    }

    /// Discards a request of `after_train` if training ended by an error or a signal: the state may
    /// be that of half a step.
    fn drop_save_request(&mut self) {
        if self.state.save_request.take().is_some() {
            log::warn!(
                "training ended by an error or a signal: the checkpoint requested in after_train is not written"
            );
        }
    }

    fn epochs(&mut self) -> Result<Ended> {
        let mut start = self.capture_start()?;
        let plain_runs = self.state.session.plain_runs()?;
        self.set_activity("callbacks before training");
        match self.callbacks.before_train(&mut TrainCx { state: self.state }) {
            Err(e) if self.ends_here(&e, start.as_ref()) => return self.end_by_signal(start),
            done => done?,
        }
        if self.state.resumed {
            // An uninterrupted run had no `before_train` here, so its runs must not shift the
            // random numbers of the runs that follow.
            self.state.session.set_plain_runs(plain_runs)?;
        }
        self.synchronize()?;
        self.commit()?;
        if self.state.resumed
            && !self.state.epoch_ended
            && let Some(ended) = self.epoch(None)?
        {
            return Ok(ended);
        }
        self.state.resumed = false;
        while self.state.progress.epoch_num < self.state.progress.max_epoch {
            self.state.progress.epoch_num += 1;
            self.state.steps_done = 0;
            self.state.epoch_ended = false;
            if let Some(ended) = self.epoch(start.take())? {
                return Ok(ended);
            }
        }
        self.state.session.discard_undo_log()?;
        let progress = &self.state.progress;
        log::info!("training finished after epoch {}, step {}", progress.epoch_num, progress.global_step);
        Ok(Ended::Finished)
    }

    /// Returns whether a signal ends training by this error of a callback before the first step: if
    /// there is a state to save, or if other processes end by it, which have no signal of their own.
    fn ends_here(&self, e: &Error, start: Option<&HostState>) -> bool {
        e.kind() == ErrorKind::Interrupted && (start.is_some() || self.ranks.is_some())
    }

    /// Returns whether this process takes part when a checkpoint is saved.
    fn saves(&self) -> bool {
        self.state.checkpoints.is_some() || self.ranks.is_some()
    }

    /// The state of a run that starts, for a signal before its first step; `None` if it resumes, since the last
    /// checkpoint has it, or if nothing is saved.
    fn capture_start(&mut self) -> Result<Option<HostState>> {
        if self.state.resumed || !self.saves() {
            return Ok(None);
        }
        self.state.session.begin_undo_log()?;
        HostState::capture(self.state, self.callbacks, &*self.iteration, self.input.as_deref())
            .map(|host| Some(host.not_started()))
    }

    /// The rest of the current epoch. Returns how training ended, if it did. `start` is the state to save if a signal
    /// comes before the first step.
    fn epoch(&mut self, start: Option<HostState>) -> Result<Option<Ended>> {
        let first = self.state.steps_done;
        let steps = self.state.progress.steps_per_epoch;
        let mut times = Times::default();
        let begun = Instant::now();
        self.state.set_moment(self.state.progress.global_step);
        if first < steps || steps == 0 {
            let progress = &self.state.progress;
            log::info!(
                "epoch {} of {}, global step {}",
                progress.epoch_num,
                progress.max_epoch,
                progress.global_step
            );
            self.set_activity("callbacks before an epoch");
            match self.callbacks.before_epoch(&mut TrainCx { state: self.state }) {
                Err(e) if self.ends_here(&e, start.as_ref()) => return self.end_by_signal(start).map(Some),
                done => done?,
            }
            self.state.resumed = false;
            self.commit()?;
        }
        // From here on the run has started. The first step compiles, which may take long.
        let mut before_step = match start {
            Some(_) => {
                self.state.session.discard_undo_log()?;
                Some(HostState::capture(self.state, self.callbacks, &*self.iteration, self.input.as_deref())?)
            }
            None => None,
        };
        for step in first..steps {
            if let Some(ended) = self.before_step()? {
                return Ok(Some(ended));
            }
            self.state.progress.local_step = step as i64;
            match self.step(&mut times)? {
                StepOutcome::Done => self.state.steps_done = step + 1,
                // It waited for data: nothing of this step happened.
                StepOutcome::NotBegun => return self.end_requested(),
                // It took a batch, so the input cannot be saved as it is now.
                StepOutcome::Compiling if before_step.is_some() => {
                    return self.end_by_signal(before_step).map(Some);
                }
                // What it did cannot be undone; the last checkpoint is kept.
                StepOutcome::Compiling | StepOutcome::Partial => return self.end_by_signal(None).map(Some),
            }
            before_step = None;
            if step + 1 < steps {
                self.commit()?;
            }
        }
        let state = &mut *self.state;
        state.progress.local_step = steps as i64 - 1;
        // Only once: a run that resumes at this boundary has done it.
        let last = state.progress.epoch_num == state.progress.max_epoch && first < steps;
        if let Some(flush) = self.flush.as_ref().filter(|_| last) {
            state.session.run(&[flush], &[])?;
        }
        self.boundary(begun, times)
    }

    /// Returns how training ends, if it does before this step.
    fn before_step(&mut self) -> Result<Option<Ended>> {
        if let Some(ranks) = &mut self.ranks
            && let Some(signal) = ranks.begin_step(self.state.progress.global_step + 1)?
        {
            log::warn!("received signal {signal}: saving, then exiting");
            self.state.save_request.get_or_insert_default();
            self.commit()?;
            return Ok(Some(Ended::Interrupted(signal)));
        }
        self.end_requested()
    }

    fn step(&mut self, times: &mut Times) -> Result<StepOutcome> {
        self.state.set_moment(self.state.progress.global_step + 1);
        let number = self.state.progress.global_step + 1;
        self.callbacks.place().set_step(number);
        let name = || Name::Shared(format!("step {number}").into());
        let span = timeline::span(|| Label { category: "step", name: name() });
        let mut cx = StepCx {
            state: self.state,
            callbacks: self.callbacks,
            input: self.input.as_deref_mut().map(|i| i as &mut dyn InputSource),
            plan: &mut self.plan,
            times,
            nan_policy: self.nan_policy,
            summary: &mut self.summary,
            description: &mut self.description,
            runs: 0,
            runs_done: 0,
            lost_batch: false,
            queued: false,
            rerun: self.rerun.as_ref(),
        };
        let first = std::mem::take(&mut self.is_first_step);
        let compiling = first.then(|| Activity::begin("compiling and running the first step"));
        let ran = self.iteration.run_step(&mut cx);
        drop(compiling);
        // Before `trigger_step`, in which a recording may end.
        drop(span);
        if self.rerun.as_ref().is_some_and(Rerun::is_done) {
            // The step was replayed, and nothing of it happened.
            let number = self.state.progress.global_step + 1;
            self.state.stop_reason = Some(format!("step {number} is computed again"));
            return Ok(StepOutcome::NotBegun);
        }
        match ran {
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                return Ok(match (cx.runs_done, cx.lost_batch) {
                    (0, false) => StepOutcome::NotBegun,
                    (0, true) => StepOutcome::Compiling,
                    _ => StepOutcome::Partial,
                });
            }
            ran => ran?,
        }
        let queued = cx.queued;
        self.state.progress.global_step += 1;
        if self.counts_in_graph && !queued {
            let step = HostTensor::scalar(self.state.progress.global_step as i64);
            self.state.session.write(GLOBAL_STEP, &step)?;
        }
        match self.callbacks.trigger_step(&mut TrainCx { state: self.state }) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(StepOutcome::Partial),
            done => done?,
        }
        if !self.state.progress.last_of_epoch() {
            self.state.monitors.end_step();
        }
        Ok(StepOutcome::Done)
    }

    /// The epoch boundary: triggers, statistics, checkpoint. A signal inside it saves the run as it was before the
    /// boundary, so that a resumed run does all of it.
    ///
    /// For that the host state is copied first, and each variable just before the boundary first changes it.
    fn boundary(&mut self, begun: Instant, times: Times) -> Result<Option<Ended>> {
        self.collect()?;
        // A run that a signal ended in its boundary has a checkpoint from before it.
        self.compare()?;
        if self.rerun.as_ref().is_some_and(Rerun::is_done) {
            return self.end_requested();
        }
        let saves = self.saves();
        let requested = self.state.save_request.clone().unwrap_or_default();
        let before = match saves {
            true => {
                Some(HostState::capture(self.state, self.callbacks, &*self.iteration, self.input.as_deref())?)
            }
            false => None,
        };
        if saves {
            self.state.session.begin_undo_log()?;
        }
        self.set_activity("callbacks at the end of an epoch");
        let triggered = self.triggers(begun, times);
        let is_interrupted = matches!(&triggered, Err(e) if e.kind() == ErrorKind::Interrupted);
        if is_interrupted {
            // The tags of the last step are those of this state, and its callbacks do not set them again.
            let tags = requested.tags.into_iter().map(|(tag, _)| tag).collect();
            return self.end_by_signal_with(before, tags).map(Some);
        }
        triggered?;
        self.synchronize()?;
        self.state.session.discard_undo_log()?;
        self.state.epoch_ended = true;
        if self.state.stop_reason.is_none() {
            self.commit()?;
        }
        self.end_requested()
    }

    /// Says what this process does outside of its steps, for the errors of others that wait for it.
    fn set_activity(&self, activity: &str) {
        if let Some(ranks) = &self.ranks {
            ranks.set_activity(activity);
        }
    }

    /// Makes all processes do what rank 0 decided outside of the steps.
    fn synchronize(&mut self) -> Result<()> {
        match &self.ranks {
            Some(ranks) => ranks.synchronize(self.state),
            None => Ok(()),
        }
    }

    /// Makes all processes save if rank 0 does.
    fn share_decisions(&mut self) -> Result<()> {
        match &self.ranks {
            Some(ranks) => ranks.share_decisions(self.state),
            None => Ok(()),
        }
    }

    fn triggers(&mut self, begun: Instant, times: Times) -> Result<()> {
        self.callbacks.after_epoch(&mut TrainCx { state: self.state })?;
        let steps_ended = Instant::now();
        timeline::record("epoch", "steps of an epoch", begun, steps_ended);
        self.put_loss_scale()?;
        self.callbacks.trigger_epoch(&mut TrainCx { state: self.state })?;
        for (name, value) in self.input.iter().flat_map(|i| i.report()) {
            self.state.monitors.put_timing(&name, value);
        }
        self.state.monitors.end_epoch();
        let ended = Instant::now();
        timeline::record("epoch", "callbacks after an epoch", steps_ended, ended);
        let (steps, all) = (steps_ended - begun, ended - begun);
        log::info!("{}", time_summary(self.state.progress.epoch_num, steps, all, times));
        Ok(())
    }

    /// Reports the loss scale and the number of skipped steps of training in f16.
    fn put_loss_scale(&mut self) -> Result<()> {
        let TrainState { session, monitors, .. } = &mut *self.state;
        if session.graph().variables().iter().any(|v| v.name == LOSS_SCALE) {
            for name in [LOSS_SCALE, SKIPPED_STEPS] {
                monitors.put_scalar(name, session.read(name)?.to_scalar()?);
            }
        }
        Ok(())
    }

    /// Whether a signal or a callback asked training to end. Either saves a checkpoint first; that
    /// of a stopped run has the reason, so that the same program does not train on.
    fn end_requested(&mut self) -> Result<Option<Ended>> {
        let ended = if let Some(signal) = self.state.interrupt.signal() {
            log::warn!("received signal {signal}: saving, then exiting");
            Ended::Interrupted(signal)
        } else if let Some(reason) = &self.state.stop_reason {
            log::info!("training stopped: {reason}");
            Ended::Stopped(reason.clone())
        } else {
            return Ok(None);
        };
        self.state.save_request.get_or_insert_default();
        self.commit()?;
        Ok(Some(ended))
    }

    /// Begins to write the requested checkpoint, if one was requested, once the run in flight is known to have
    /// succeeded. Returns the error of an earlier one that failed meanwhile.
    fn commit(&mut self) -> Result<()> {
        if self.rerun.is_some() {
            self.state.save_request = None;
            return self.compare();
        }
        if self.state.save_request.is_some() {
            self.collect()?;
            self.set_activity("saving");
            self.callbacks.place().set(Doing::Save);
        }
        resume::commit(self.state, self.callbacks, &*self.iteration, self.input.as_deref())
    }

    /// Compares this state with the checkpoint that was taken at it, if that is what this process is for.
    fn compare(&mut self) -> Result<()> {
        let position = self.state.position();
        if self.rerun.as_ref().is_some_and(|rerun| rerun.is_due(&position)) {
            self.collect()?;
        }
        self.rerun.as_mut().map_or(Ok(()), |rerun| rerun.compare(self.state))
    }

    /// Waits for the runs in flight, and hands out their values.
    fn collect(&mut self) -> Result<()> {
        self.plan.collect(self.state, self.callbacks)
    }

    /// Ends training after a signal. `before` is the state to save; without it the last checkpoint
    /// is kept.
    fn end_by_signal(&mut self, before: Option<HostState>) -> Result<Ended> {
        self.end_by_signal_with(before, Vec::new())
    }

    fn end_by_signal_with(&mut self, before: Option<HostState>, tags: Vec<String>) -> Result<Ended> {
        let signal = self.state.interrupt.signal().unwrap_or_default();
        if let Some(before) = before {
            log::warn!("received signal {signal}: saving, then exiting");
            let changed = self.state.session.end_undo_log()?;
            resume::write(self.state, before, changed, tags)?;
        } else {
            log::warn!(
                "received signal {signal} in the middle of a step: exiting; the last checkpoint is valid"
            );
        }
        Ok(Ended::Interrupted(signal))
    }
}

/// `epoch 3: 12.3 s = input 1.0 + compute 10.9 + other 0.4; then callbacks 2.1 s`.
fn time_summary(epoch: u64, steps: Duration, all: Duration, times: Times) -> String {
    let other = steps.saturating_sub(times.input + times.compute);
    format!(
        "epoch {epoch}: {:.3} s = input {:.3} + compute {:.3} + other {:.3}; then callbacks {:.3} s",
        steps.as_secs_f64(),
        times.input.as_secs_f64(),
        times.compute.as_secs_f64(),
        other.as_secs_f64(),
        all.saturating_sub(steps).as_secs_f64()
    )
}
