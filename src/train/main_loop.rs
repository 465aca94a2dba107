//! The only loop over epochs and steps.

use super::live::Live;
use super::position::Position;
use super::step::{Iteration, StepCx, Times};
use crate::callback::{Callbacks, TrainCx};
use crate::input::InputSource;
use crate::io::Checkpoint;
use std::time::{Duration, Instant};
use tensorpack_tensor::{ErrorKind, HostTensor, Result};

/// How training ended, if not by an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs were done.
    Finished,
    /// Somebody asked for it, for this reason.
    Stopped(String),
    /// This signal asked for it.
    Interrupted(i32),
}

/// How far a step got.
enum Step {
    Done,
    /// A signal came before it changed anything.
    NotBegun,
    /// A signal came after it had changed something.
    Half,
}

/// Runs all epochs from where the run is.
pub(super) struct MainLoop<'a> {
    pub(super) live: &'a mut Live,
    pub(super) callbacks: &'a mut Callbacks,
    pub(super) input: Option<Box<dyn InputSource>>,
    pub(super) iteration: &'a mut dyn Iteration,
    /// Whether the graph has a variable that is told the number of the step.
    pub(super) counts_in_graph: bool,
}

impl MainLoop<'_> {
    pub(super) fn run(&mut self) -> Result<Ended> {
        let ended = self.epochs();
        // However it ended, everybody gets to clean up; the first cause is the one to report.
        let after = self.callbacks.after_train(&mut TrainCx { run: &mut self.live.run });
        self.live.run.monitors.finish();
        if let Some(input) = &mut self.input {
            input.stop();
        }
        let ended = ended?;
        after?;
        Ok(ended)
    }

    fn epochs(&mut self) -> Result<Ended> {
        self.callbacks.before_train(&mut TrainCx { run: &mut self.live.run })?;
        if self.live.run.resumed
            && !self.live.at.ended
            && let Some(ended) = self.epoch(self.live.at)?
        {
            return Ok(ended);
        }
        self.live.run.resumed = false;
        while self.live.run.progress.epoch_num < self.live.run.progress.max_epoch {
            let next = Position {
                epoch_num: self.live.run.progress.epoch_num + 1,
                steps: 0,
                global_step: self.live.run.progress.global_step,
                begun: false,
                ended: false,
            };
            if let Some(ended) = self.epoch(next)? {
                return Ok(ended);
            }
        }
        let progress = &self.live.run.progress;
        log::info!("training is finished after epoch {}, step {}", progress.epoch_num, progress.global_step);
        Ok(Ended::Finished)
    }

    /// One epoch, from `at` on; returns how training ended if it did.
    fn epoch(&mut self, at: Position) -> Result<Option<Ended>> {
        let progress = &mut self.live.run.progress;
        progress.epoch_num = at.epoch_num;
        let (steps, global_step) = (progress.steps_per_epoch, progress.global_step);
        let mut times = Times::default();
        let begun = Instant::now();
        self.live.run.set_moment(global_step);
        let progress = &self.live.run.progress;
        if at.steps < steps || steps == 0 {
            log::info!(
                "epoch {} of {}, global step {}",
                at.epoch_num,
                progress.max_epoch,
                progress.global_step
            );
            self.live.run.resumed &= at.begun;
            self.callbacks.before_epoch(&mut TrainCx { run: &mut self.live.run })?;
            self.live.run.resumed = false;
        }
        for done in at.steps..steps {
            if let Some(ended) = self.asked_to_end(Position::within(&self.live.run.progress, done))? {
                return Ok(Some(ended));
            }
            self.live.run.progress.local_step = done as i64;
            match self.step(&mut times)? {
                Step::Done => {}
                // It waited for data: nothing of this step happened.
                Step::NotBegun => return self.asked_to_end(Position::within(&self.live.run.progress, done)),
                // What it did cannot be taken back; the last checkpoint stands.
                Step::Half => return self.interrupted(None),
            }
            if done + 1 < steps {
                self.commit(Position::within(&self.live.run.progress, done + 1))?;
            }
        }
        let run = &mut self.live.run;
        run.progress.local_step = steps as i64 - 1;
        // Once: a run that resumes at this end has done it.
        let last = run.progress.epoch_num == run.progress.max_epoch && at.steps < steps;
        if let Some(flush) = self.live.flush.as_ref().filter(|_| last) {
            run.session.run(&[flush], &[])?;
        }
        self.boundary(begun, times)
    }

    fn step(&mut self, times: &mut Times) -> Result<Step> {
        let Live { run, ops, nan, opening, .. } = &mut *self.live;
        run.set_moment(run.progress.global_step + 1);
        let mut cx = StepCx {
            run,
            callbacks: self.callbacks,
            input: self.input.as_deref_mut().map(|i| i as &mut dyn InputSource),
            ops,
            times,
            nan,
            opening,
            runs: 0,
            runs_done: 0,
        };
        match self.iteration.run_step(&mut cx) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                return Ok(if cx.runs_done == 0 { Step::NotBegun } else { Step::Half });
            }
            ran => ran?,
        }
        let run = &mut self.live.run;
        run.progress.global_step += 1;
        if self.counts_in_graph {
            run.session.write("global_step", &HostTensor::scalar(run.progress.global_step as i64))?;
        }
        match self.callbacks.trigger_step(&mut TrainCx { run }) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(Step::Half),
            done => done?,
        }
        let run = &mut self.live.run;
        if !run.progress.last_of_epoch() {
            run.monitors.end_step();
        }
        Ok(Step::Done)
    }

    /// The end of an epoch: triggers, statistics, checkpoint. A signal inside it leaves the run as it was before, so
    /// that a resumed one does all of it.
    fn boundary(&mut self, begun: Instant, times: Times) -> Result<Option<Ended>> {
        self.collect()?;
        let steps = self.live.run.progress.steps_per_epoch;
        let before = Position::within(&self.live.run.progress, steps);
        let copy = match self.live.store {
            Some(_) => Some(self.live.checkpoint(self.callbacks, self.input.as_deref(), before)?),
            None => None,
        };
        match self.triggers(begun, times) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return self.interrupted(copy),
            done => done?,
        }
        let after = Position { ended: true, ..before };
        self.commit(after)?;
        self.asked_to_end(after)
    }

    fn triggers(&mut self, begun: Instant, times: Times) -> Result<()> {
        self.callbacks.after_epoch(&mut TrainCx { run: &mut self.live.run })?;
        let elapsed = begun.elapsed();
        self.callbacks.trigger_epoch(&mut TrainCx { run: &mut self.live.run })?;
        let run = &mut self.live.run;
        for (name, value) in self.input.iter().flat_map(|i| i.report()) {
            run.monitors.put_timing(&name, value);
        }
        run.monitors.end_epoch();
        log::info!("{}", where_time_went(run.progress.epoch_num, elapsed, begun.elapsed(), times));
        Ok(())
    }

    /// Whether somebody asked for the end. A signal is answered with a checkpoint.
    fn asked_to_end(&mut self, at: Position) -> Result<Option<Ended>> {
        if let Some(signal) = self.live.run.interrupt.signal() {
            log::warn!("signal {signal}: saving, then ending");
            self.live.run.save.get_or_insert_default();
            self.commit(at)?;
            return Ok(Some(Ended::Interrupted(signal)));
        }
        let stop = self.live.run.stop.take();
        if let Some(reason) = &stop {
            self.collect()?;
            log::info!("training was stopped: {reason}");
        }
        Ok(stop.map(Ended::Stopped))
    }

    /// Writes the checkpoint that was asked for, if one was: when all that was launched is known to have gone well.
    fn commit(&mut self, at: Position) -> Result<()> {
        if self.live.run.save.is_some() {
            self.collect()?;
        }
        self.live.commit(self.callbacks, self.input.as_deref(), at)
    }

    /// Waits for what was launched, and hands out what it fetched.
    fn collect(&mut self) -> Result<()> {
        let Live { ops, run, .. } = &mut *self.live;
        ops.collect(&run.session, self.callbacks)
    }

    fn interrupted(&mut self, copy: Option<Checkpoint>) -> Result<Option<Ended>> {
        let signal = self.live.run.interrupt.signal().unwrap_or_default();
        if let Some(copy) = copy {
            log::warn!("signal {signal}: saving, then ending");
            self.live.write(&copy, &[])?;
        } else {
            log::warn!("signal {signal}: ending in the middle of a step; what was saved before stands");
        }
        Ok(Some(Ended::Interrupted(signal)))
    }
}

/// `epoch 3: 12.3 s = input 1.0 + compute 10.9 + other 0.4; then callbacks 2.1 s`.
fn where_time_went(epoch: u64, steps: Duration, all: Duration, times: Times) -> String {
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
