//! One iteration: what it is, and what it can do.

use super::batch_summary::{BatchSummary, Description, log_model};
use super::rerun::Rerun;
use super::step_plan::{RunId, StepPlan, depends_on};
use crate::callback::{Callbacks, Doing, Progress, RunCx, TrainState};
use crate::graph::{Fetch, Frozen, NodeKind};
use crate::input::InputSource;
use crate::runtime::{Clock, IntoFetch, Launches, MAX_FEEDS, Session, StepProgram};
use crate::terminal::Activity;
use serde_json::{Map, Value};
use std::ops::Deref;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};
use tensorpack_timeline as timeline;

/// One training step, which the trainer defines; callbacks do everything else.
pub trait Iteration {
    /// Runs one step.
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()>;

    /// Returns whether a step is one [run](StepCx::run) of one operation and nothing else, so that
    /// several steps can be one launch. Defaults to `false`.
    fn is_one_run(&self) -> bool {
        false
    }

    /// Checks before the first step that the iteration fits the graph. Accepts any by default.
    fn check(&self, graph: &Frozen) -> Result<()> {
        let _ = graph;
        Ok(())
    }

    /// Returns what a resumed run needs to continue after the current step, such as counters or the
    /// loss that decides about the next step. Called between steps. [`Value::Null`], the default, if
    /// there is nothing.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Restores what [`Iteration::state`] returned. Called once, before the first step of a resumed
    /// run, unless the state is [`Value::Null`]. Does nothing by default.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

impl Iteration for Box<dyn Iteration> {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        (**self).run_step(cx)
    }

    fn is_one_run(&self) -> bool {
        (**self).is_one_run()
    }

    fn check(&self, graph: &Frozen) -> Result<()> {
        (**self).check(graph)
    }

    fn state(&self) -> Value {
        (**self).state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        (**self).load_state(state)
    }
}

/// Runs one operation per step, which is what most training is. An operation that updates no
/// variable, such as a cost, is an error.
#[derive(Clone, Debug)]
pub struct RunTrainOp(pub Fetch);

impl Iteration for RunTrainOp {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        cx.run(&self.0).map(|_| ())
    }

    fn is_one_run(&self) -> bool {
        true
    }

    fn check(&self, graph: &Frozen) -> Result<()> {
        let updates = depends_on(graph, [&self.0], |kind| matches!(kind, NodeKind::Assign { .. }));
        if updates || self.0.graph != graph.uid() {
            return Ok(());
        }
        let why = format!("the train op {:?} updates no variable, so nothing would be trained", self.0.name);
        Err(Error::argument(why).note("run the operation that minimize(..) or apply_gradients(..) returns"))
    }
}

impl<F: FnMut(&mut StepCx<'_>) -> Result<()>> Iteration for F {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        self(cx)
    }
}

/// The reaction to a cost or gradient that is not finite. In either case no variable changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NanPolicy {
    /// End training with an error that names the first tensor that is not finite, and the line that made it.
    #[default]
    Stop,
    /// Count it and continue with the next batch; end training after this many in a row.
    Skip(u32),
}

/// How the time of an epoch's steps was spent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) input: Duration,
    pub(super) compute: Duration,
}

impl Times {
    /// Adds the time since `begun` to that of input.
    fn add_input(&mut self, begun: Instant) {
        let ended = Instant::now();
        timeline::record("step", "input", begun, ended);
        self.input += ended - begun;
    }

    /// Adds the time since `begun` to that of computation.
    fn add_compute(&mut self, begun: Instant) {
        let ended = Instant::now();
        timeline::record("step", "compute", begun, ended);
        self.compute += ended - begun;
    }
}

/// The context of an iteration.
pub struct StepCx<'a> {
    pub(super) state: &'a mut TrainState,
    pub(super) callbacks: &'a mut Callbacks,
    pub(super) input: Option<&'a mut dyn InputSource>,
    pub(super) plan: &'a mut StepPlan,
    pub(super) times: &'a mut Times,
    pub(super) nan_policy: NanPolicy,
    /// Logged with the first batch.
    pub(super) summary: &'a mut Option<BatchSummary>,
    /// What to log about the model with the first batch.
    pub(super) description: &'a mut Description,
    /// Step runs in this step so far.
    pub(super) runs: u32,
    /// Runs of any kind after which this step cannot be taken back.
    pub(super) runs_done: u32,
    /// Whether an interrupted run has taken a batch that no run uses.
    pub(super) lost_batch: bool,
    /// Whether the step is queued for a launch of several, which counts it in the graph.
    pub(super) queued: bool,
    /// What to do instead of training, if anything.
    pub(super) rerun: Option<&'a Rerun>,
}

impl StepCx<'_> {
    /// Executes a *step run*: calls the callbacks' `before_run` and `after_run`, draws a batch if
    /// `what` depends on the input, and advances random operations. Returns the value of `what`, if
    /// it is a tensor. The first step run of a step also computes the fetches and operations of
    /// callbacks.
    ///
    /// On an accelerator a run whose values are not needed immediately stays in flight and is
    /// collected after the next two have started. If it failed, they have changed nothing either,
    /// and the error names the step.
    #[doc(alias = "hooked_sess")]
    pub fn run(&mut self, what: &Fetch) -> Result<&[HostTensor]> {
        let id = self.next_run(what)?;
        let clock = clock(&self.state.progress);
        let can_stay_in_flight = self.plan.run(id).program.can_stay_in_flight(clock);
        if let Some(launches) = self.plan.launches.filter(|_| can_stay_in_flight) {
            return self.queue(id, launches);
        }
        // Skipping a bad step requires knowing about it before the next one starts.
        let replayed = self.rerun.filter(|rerun| rerun.replays(self.state.progress.global_step + 1));
        let stays_in_flight = self.nan_policy == NanPolicy::Stop && can_stay_in_flight && replayed.is_none();
        if !stays_in_flight {
            self.plan.collect(self.state, self.callbacks)?;
        }
        // First of all: the wait may be interrupted, and then nothing of this run has happened.
        let needs_input = self.plan.run(id).needs_input;
        self.callbacks.place().set(Doing::Input);
        let batch = draw(&mut self.input, needs_input, self.times, self.summary, &mut self.state.settings)?;
        self.callbacks.before_run(&mut RunCx { state: self.state, program: None })?;
        self.callbacks.place().set(Doing::Compute);
        let drawn = Instant::now();
        let nothing = HostTensor::scalar(0u8);
        let mut feeds = [("", &nothing); MAX_FEEDS];
        feeds.iter_mut().zip(batch).for_each(|(feed, (name, value))| *feed = (name, value));
        let (session, feeds) = (&self.state.session, &feeds[..batch.len()]);
        if let Some(rerun) = replayed {
            rerun.replay(session, what, feeds)?;
        }
        let program = &mut self.plan.run(id).program;
        let saves = self.state.logdir.is_some();
        log_model(std::mem::take(self.description), session, saves, program, feeds);
        let launched = if stays_in_flight { program.launch(session, feeds) } else { Ok(false) };
        let ran = match launched {
            Ok(true) => {
                self.plan.launched(id, self.state.progress.clone(), session, self.callbacks)?;
                self.times.add_compute(drawn);
                return self.after_run(id);
            }
            Ok(false) => program.run(session, clock, feeds),
            Err(e) => Err(e),
        };
        self.times.add_compute(drawn);
        self.finish_run(id, ran)
    }

    /// Queues a step run, which is launched together with others. Runs it at once if it cannot be,
    /// because its towers have batches of different sizes.
    fn queue(&mut self, id: RunId, launches: Launches) -> Result<&[HostTensor]> {
        let needs_input = self.plan.run(id).needs_input;
        self.callbacks.place().set(Doing::Input);
        let batch = draw(&mut self.input, needs_input, self.times, self.summary, &mut self.state.settings)?;
        self.callbacks.before_run(&mut RunCx { state: self.state, program: None })?;
        self.callbacks.place().set(Doing::Compute);
        let drawn = Instant::now();
        let nothing = HostTensor::scalar(0u8);
        let mut feeds = [("", &nothing); MAX_FEEDS];
        feeds.iter_mut().zip(batch).for_each(|(feed, (name, value))| *feed = (name, value));
        let (session, feeds) = (&self.state.session, &feeds[..batch.len()]);
        let program = &mut self.plan.run(id).program;
        let saves = self.state.logdir.is_some();
        log_model(std::mem::take(self.description), session, saves, program, feeds);
        let can_queue = match program.prepare_queue(session, feeds, launches) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                // Only compiling is interrupted, so the step changed nothing.
                self.lost_batch = true;
                return Err(e);
            }
            prepared => prepared?,
        };
        if !can_queue {
            self.plan.collect(self.state, self.callbacks)?;
            let clock = clock(&self.state.progress);
            let ran = self.plan.run(id).program.run(&self.state.session, clock, feeds);
            self.times.add_compute(drawn);
            return self.finish_run(id, ran);
        }
        if launches.skip_limit > 0 {
            // A launch counts on from the steps in a row that were skipped before it.
            self.plan.collect_launches(0, self.state, self.callbacks)?;
        }
        let (session, skipped) = (&self.state.session, self.state.skipped.in_a_row);
        self.plan.run(id).program.queue(session, feeds, launches, skipped)?;
        self.queued = true;
        self.plan.was_queued(id, self.state, self.callbacks)?;
        self.times.add_compute(drawn);
        self.runs_done += 1;
        let program = &self.plan.run(id).program;
        self.callbacks.after_run(&mut RunCx { state: self.state, program: Some(program) })?;
        Ok(&[])
    }

    /// A step run that another thread executes: `by` receives the job, has it run, and returns its
    /// program with the outcome.
    pub(super) fn run_by(
        &mut self,
        what: &Fetch,
        by: impl FnOnce(&mut StepCx<'_>, Job) -> Result<(StepProgram, Result<()>)>,
    ) -> Result<()> {
        let id = self.next_run(what)?;
        let needs_input = self.plan.run(id).needs_input;
        self.callbacks.place().set(Doing::Input);
        let feeds =
            draw(&mut self.input, needs_input, self.times, self.summary, &mut self.state.settings)?.to_vec();
        self.callbacks.before_run(&mut RunCx { state: self.state, program: None })?;
        self.callbacks.place().set(Doing::Compute);
        let drawn = Instant::now();
        let program = std::mem::replace(&mut self.plan.run(id).program, StepProgram::new(&[]));
        let (program, ran) = by(self, Job { program, clock: clock(&self.state.progress), feeds })?;
        self.plan.run(id).program = program;
        self.times.add_compute(drawn);
        // Meanwhile other towers may have changed variables.
        self.runs_done += 1;
        self.finish_run(id, ran).map(|_| ())
    }

    /// Returns a job that runs `what` on another thread, in parallel to the runs of this step. It
    /// calls no callbacks.
    pub(super) fn parallel_job(&mut self, what: &Fetch, program: StepProgram) -> Result<Job> {
        let id = self.plan.find(self.state.session.graph(), what, false)?;
        let needs_input = self.plan.run(id).needs_input;
        self.callbacks.place().set(Doing::Input);
        let feeds =
            draw(&mut self.input, needs_input, self.times, self.summary, &mut self.state.settings)?.to_vec();
        Ok(Job { program, clock: clock(&self.state.progress), feeds })
    }

    /// Counts one more run of this step.
    fn next_run(&mut self, what: &Fetch) -> Result<RunId> {
        self.runs += 1;
        self.plan.find(self.state.session.graph(), what, self.runs == 1)
    }

    /// Handles the outcome of a step run.
    fn finish_run(&mut self, id: RunId, ran: Result<()>) -> Result<&[HostTensor]> {
        let step = self.state.progress.global_step + 1;
        match ran {
            Err(e) if e.kind() == ErrorKind::NotFinite && self.skips() => {
                log::warn!("skipped step {step} ({} skipped so far): {e}", self.state.skipped.total);
                // Its random numbers are used up, as those of any run.
                let session = &self.state.session;
                session.set_run_index(session.run_index()? + 1)?;
                self.runs_done += 1;
                return Ok(&[]);
            }
            Err(e) if e.kind() == ErrorKind::Overflow => {
                log_overflow(step);
                let session = &self.state.session;
                session.set_run_index(session.run_index()? + 1)?;
                self.runs_done += 1;
                return Ok(&[]);
            }
            Err(e) if e.kind() == ErrorKind::NotFinite => {
                return Err(self.plan.costs.explain(e).within(format!("step {step}")));
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                // Only compiling is interrupted, so it changed nothing.
                self.lost_batch = true;
                return Err(e);
            }
            ran => ran?,
        }
        self.plan.hand_out(id, self.state.progress.clone(), self.callbacks)?;
        self.after_run(id)
    }

    /// Calls `after_run` for a run that succeeded, as far as is known.
    fn after_run(&mut self, id: RunId) -> Result<&[HostTensor]> {
        self.state.skipped.in_a_row = 0;
        self.runs_done += 1;
        let program = &self.plan.run(id).program;
        self.callbacks.after_run(&mut RunCx { state: self.state, program: Some(program) })?;
        Ok(program.results())
    }

    /// Counts a step that is not finite. Returns whether the policy is to skip it.
    pub(super) fn skips(&mut self) -> bool {
        let skipped = &mut self.state.skipped;
        skipped.total += 1;
        skipped.in_a_row += 1;
        matches!(self.nan_policy, NanPolicy::Skip(most) if skipped.in_a_row <= most)
    }

    /// A plain run: no callback sees it and nothing is counted. The inputs it depends on must be fed.
    #[doc(alias = "sess")]
    pub fn run_plain(
        &mut self,
        what: &[&dyn IntoFetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<Vec<HostTensor>> {
        // It may have changed variables.
        self.runs_done += 1;
        self.state.session.run(what, feeds)
    }

    /// Stops training after this step, for this reason.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.state.stop_reason.get_or_insert(reason.into());
    }
}

/// Logs that a step was skipped. Its loss scale has been lowered already.
pub(super) fn log_overflow(step: u64) {
    log::info!("step {step} overflowed in f16 and was skipped; the loss scale is halved");
}

/// A run for another thread, with all it takes.
pub(super) struct Job {
    pub(super) program: StepProgram,
    pub(super) clock: Clock,
    pub(super) feeds: Vec<(String, HostTensor)>,
}

impl Job {
    pub(super) fn run(&mut self, session: &Session) -> Result<()> {
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        self.program.run(session, self.clock, &feeds)
    }
}

/// The clock of the step that runs.
fn clock(progress: &Progress) -> Clock {
    Clock { global_step: progress.global_step + 1, last_of_epoch: progress.last_of_epoch() }
}

/// Draws a batch, for a run that depends on the input.
fn draw<'a>(
    input: &'a mut Option<&mut dyn InputSource>,
    needed: bool,
    times: &mut Times,
    summary: &mut Option<BatchSummary>,
    settings: &mut Map<String, Value>,
) -> Result<&'a [(String, HostTensor)]> {
    let begun = Instant::now();
    let batch = match input {
        Some(input) if needed => {
            let _reading = summary.is_some().then(|| Activity::begin("reading the first batch"));
            input.next()?
        }
        _ => &[],
    };
    if let Some(summary) = summary.take_if(|_| !batch.is_empty()) {
        log::info!("{}", summary.text(batch));
        summary.record_batch_size(settings, batch);
    }
    if batch.len() > MAX_FEEDS {
        let why = format!("all towers together take at most {MAX_FEEDS} inputs, not {}", batch.len());
        return Err(Error::argument(why));
    }
    times.add_input(begun);
    Ok(batch)
}

impl Deref for StepCx<'_> {
    type Target = Progress;
    fn deref(&self) -> &Progress {
        &self.state.progress
    }
}
