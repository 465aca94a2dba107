//! One iteration: what it is, and what it can do.

use crate::callback::{Callbacks, Collected, HookCx, Progress, Run};
use crate::graph::{Fetch, Frozen, NodeId, NodeKind};
use crate::input::InputSource;
use crate::runtime::{Cadence, Clock, Declared, HookedRun, IntoFetch, MAX_FEEDS, Session};
use std::collections::HashSet;
use std::ops::Deref;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// What a step of training does. A trainer decides that; callbacks do all the rest.
pub trait Iteration {
    /// Does one step.
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()>;
}

/// Runs one operation at every step: what most training is.
#[derive(Clone, Debug)]
pub struct RunTrainOp(pub Fetch);

impl Iteration for RunTrainOp {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        cx.run(&self.0).map(|_| ())
    }
}

impl<F: FnMut(&mut StepCx<'_>) -> Result<()>> Iteration for F {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        self(cx)
    }
}

/// What to do when a cost or a gradient is not finite. In either case no variable is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NanPolicy {
    /// End training with an error that names the first tensor that is not finite, and the line that made it.
    #[default]
    Stop,
    /// Count it, and go on with the next batch; end training after this many in a row.
    Skip(u32),
}

/// Everything that is run hooked, with what is fetched along.
pub(super) struct HookedOps {
    pub(super) declared: Vec<(Fetch, Cadence)>,
    pub(super) along: Vec<Fetch>,
    ops: Vec<HookedOp>,
    /// The run that was launched last and not waited for, with where training was.
    waiting: Option<(Chosen, Progress)>,
}

struct HookedOp {
    what: Fetch,
    /// With all that is fetched and run along, for the first run of a step.
    first: HookedPart,
    /// Alone, for further runs of a step.
    alone: HookedPart,
}

struct HookedPart {
    run: HookedRun,
    fetches: Vec<Declared>,
    needs_input: bool,
}

/// Which part of which operation a run is.
#[derive(Clone, Copy)]
struct Chosen {
    at: usize,
    first: bool,
}

impl HookedOps {
    pub(super) fn new(declared: Vec<(Fetch, Cadence)>, along: Vec<Fetch>) -> HookedOps {
        HookedOps { declared, along, ops: Vec::new(), waiting: None }
    }

    /// The place of an operation, made ready if it was not run before.
    fn find(&mut self, graph: &Frozen, what: &Fetch) -> Result<usize> {
        if let Some(at) = self.ops.iter().position(|op| op.what == *what) {
            return Ok(at);
        }
        let with: Vec<&dyn IntoFetch> =
            std::iter::once(what).chain(&self.along).map(|f| f as &dyn IntoFetch).collect();
        let mut first = HookedRun::new(&with);
        let fetches =
            self.declared.iter().map(|(f, cadence)| first.declare(f, *cadence)).collect::<Result<_>>()?;
        let all = std::iter::once(what).chain(&self.along).chain(self.declared.iter().map(|(f, _)| f));
        let first = HookedPart { run: first, fetches, needs_input: needs_input(graph, all) };
        let alone = HookedPart {
            run: HookedRun::new(&[what]),
            fetches: Vec::new(),
            needs_input: needs_input(graph, std::iter::once(what)),
        };
        self.ops.push(HookedOp { what: what.clone(), first, alone });
        Ok(self.ops.len() - 1)
    }

    /// Waits for the run that was launched last, if there is one, and hands out what it fetched.
    pub(super) fn collect(&mut self, session: &Session, callbacks: &mut Callbacks) -> Result<()> {
        match self.waiting.take() {
            Some((chosen, progress)) => self.collect_run(chosen, progress, session, callbacks),
            None => Ok(()),
        }
    }

    fn collect_run(
        &mut self,
        chosen: Chosen,
        progress: Progress,
        session: &Session,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        let HookedPart { run, fetches, .. } = self.part(chosen);
        run.collect(session).map_err(|e| e.within(format!("step {}", progress.global_step + 1)))?;
        callbacks.collect(&Collected { progress, hooked: Some((run, fetches)) })
    }

    fn part(&mut self, chosen: Chosen) -> &mut HookedPart {
        let op = &mut self.ops[chosen.at];
        if chosen.first { &mut op.first } else { &mut op.alone }
    }
}

/// Whether any of these depends on something that is fed.
fn needs_input<'a>(graph: &Frozen, what: impl Iterator<Item = &'a Fetch>) -> bool {
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut stack: Vec<NodeId> = what.map(|f| f.node).collect();
    while let Some(id) = stack.pop() {
        let Some(node) = graph.nodes().get(id.0 as usize).filter(|_| seen.insert(id)) else { continue };
        if matches!(node.kind, NodeKind::Placeholder) {
            return true;
        }
        stack.extend(node.inputs.iter().map(|t| t.node).chain(node.runs.iter().copied()));
    }
    false
}

/// What is said once, with the first batch: how much data a step and an epoch take.
pub(super) struct Opening {
    pub(super) towers: usize,
    /// How many times as many there are in all: those that run each on its own.
    pub(super) apart: usize,
    pub(super) steps_per_epoch: u64,
    /// Batches in a pass over the data, if that is known.
    pub(super) pass: Option<u64>,
}

impl Opening {
    /// `batch 128 = 1 tower x 128; an epoch is 468 steps, 468 batches, 1.00 passes over the data`.
    fn text(&self, batch: &[(String, HostTensor)]) -> String {
        let Opening { towers, apart, steps_per_epoch: steps, pass } = *self;
        let inputs = (batch.len() / towers.max(1)).max(1);
        let rows = batch.iter().step_by(inputs).map(|(_, value)| value.sizes().first().copied().unwrap_or(1));
        let rows: Vec<usize> = rows.collect();
        let each = rows.first().copied().unwrap_or(0);
        let total = rows.iter().sum::<usize>() * apart;
        let towers = towers * apart;
        let taken = steps * towers as u64;
        let passes = pass
            .filter(|n| *n > 0)
            .map_or_else(String::new, |n| format!(", {:.2} passes over the data", taken as f64 / n as f64));
        let s = if towers == 1 { "" } else { "s" };
        format!(
            "batch {total} = {towers} tower{s} x {each}; an epoch is {steps} steps, {taken} batches{passes}"
        )
    }
}

/// Where the time of an epoch went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) input: Duration,
    pub(super) compute: Duration,
}

/// What an iteration can do.
pub struct StepCx<'a> {
    pub(super) run: &'a mut Run,
    pub(super) callbacks: &'a mut Callbacks,
    pub(super) input: Option<&'a mut dyn InputSource>,
    pub(super) ops: &'a mut HookedOps,
    pub(super) times: &'a mut Times,
    pub(super) nan: &'a mut NanCount,
    pub(super) opening: &'a mut Option<Opening>,
    /// Hooked runs of this step so far.
    pub(super) runs: u32,
    /// Runs of any kind after which this step cannot be taken back.
    pub(super) runs_done: u32,
}

/// Steps that were skipped because something was not finite.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NanCount {
    pub(super) policy: NanPolicy,
    pub(super) total: u64,
    pub(super) in_a_row: u32,
}

impl StepCx<'_> {
    /// A hooked run: callbacks see it, it takes a batch of the input if it needs one, and it counts for random
    /// operations. Returns the values of what was run, if it is a tensor. The first hooked run of a step carries what
    /// callbacks fetch and run along.
    ///
    /// On an accelerator a run whose values nobody needs at once goes on by itself, and is waited for when the next one has
    /// begun. If it failed, that one has changed nothing either, and the error names the step.
    #[doc(alias = "hooked_sess")]
    pub fn run(&mut self, what: &Fetch) -> Result<&[HostTensor]> {
        let chosen = self.choose(what)?;
        let clock = clock(&self.run.progress);
        // Who skips bad steps must know of one before the next.
        let ahead = self.nan.policy == NanPolicy::Stop && self.ops.part(chosen).run.can_be_launched(clock);
        if !ahead {
            self.ops.collect(&self.run.session, self.callbacks)?;
        }
        // First, for a wait may be cut short, and then nothing of this run has happened.
        let needs_input = self.ops.part(chosen).needs_input;
        let batch = draw(&mut self.input, needs_input, self.times, self.opening)?;
        self.callbacks.before_run(&mut HookCx { run: self.run, hooked: None })?;
        let drawn = Instant::now();
        let nothing = HostTensor::scalar(0u8);
        let mut feeds = [("", &nothing); MAX_FEEDS];
        feeds.iter_mut().zip(batch).for_each(|(feed, (name, value))| *feed = (name, value));
        let (session, feeds) = (&self.run.session, &feeds[..batch.len()]);
        let hooked = &mut self.ops.part(chosen).run;
        let launched = if ahead { hooked.launch(session, feeds) } else { Ok(false) };
        let ran = match launched {
            Ok(true) => {
                let before = self.ops.waiting.replace((chosen, self.run.progress.clone()));
                if let Some((chosen, progress)) = before {
                    self.ops.collect_run(chosen, progress, session, self.callbacks)?;
                }
                self.times.compute += drawn.elapsed();
                return self.after_run(chosen);
            }
            Ok(false) => hooked.run(session, clock, feeds),
            Err(e) => Err(e),
        };
        self.times.compute += drawn.elapsed();
        self.settle(chosen, ran)
    }

    /// A hooked run that is done elsewhere: `by` gets what is to be run, has it run, and gives it back with how that
    /// went.
    pub(super) fn run_by(
        &mut self,
        what: &Fetch,
        by: impl FnOnce(&mut StepCx<'_>, Job) -> Result<(HookedRun, Result<()>)>,
    ) -> Result<()> {
        let chosen = self.choose(what)?;
        let needs_input = self.ops.part(chosen).needs_input;
        let feeds = draw(&mut self.input, needs_input, self.times, self.opening)?.to_vec();
        self.callbacks.before_run(&mut HookCx { run: self.run, hooked: None })?;
        let drawn = Instant::now();
        let hooked = std::mem::replace(&mut self.ops.part(chosen).run, HookedRun::new(&[]));
        let (hooked, ran) = by(self, Job { hooked, clock: clock(&self.run.progress), feeds })?;
        self.ops.part(chosen).run = hooked;
        self.times.compute += drawn.elapsed();
        self.settle(chosen, ran).map(|_| ())
    }

    /// A job for somebody who runs `what` beside this step's own runs: no callback sees it.
    pub(super) fn job_beside(&mut self, what: &Fetch, hooked: HookedRun) -> Result<Job> {
        let at = self.ops.find(self.run.session.graph(), what)?;
        let needs_input = self.ops.part(Chosen { at, first: false }).needs_input;
        let feeds = draw(&mut self.input, needs_input, self.times, self.opening)?.to_vec();
        Ok(Job { hooked, clock: clock(&self.run.progress), feeds })
    }

    /// Counts one more hooked run.
    fn choose(&mut self, what: &Fetch) -> Result<Chosen> {
        let at = self.ops.find(self.run.session.graph(), what)?;
        self.runs += 1;
        Ok(Chosen { at, first: self.runs == 1 })
    }

    /// What comes after a hooked run, however it went.
    fn settle(&mut self, chosen: Chosen, ran: Result<()>) -> Result<&[HostTensor]> {
        let step = self.run.progress.global_step + 1;
        match ran {
            Err(e) if e.kind() == ErrorKind::NotFinite && self.nan.skips() => {
                log::warn!("step {step} was skipped, {} so far: {e}", self.nan.total);
                // Its random numbers are spent, as those of any run.
                let session = &self.run.session;
                session.set_run_index(session.run_index()? + 1)?;
                self.runs_done += 1;
                return Ok(&[]);
            }
            Err(e) if e.kind() == ErrorKind::NotFinite => return Err(e.within(format!("step {step}"))),
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                // The batch it took is gone.
                self.runs_done += 1;
                return Err(e);
            }
            ran => ran?,
        }
        let HookedPart { run: hooked, fetches, .. } = self.ops.part(chosen);
        let progress = self.run.progress.clone();
        self.callbacks.collect(&Collected { progress, hooked: Some((hooked, fetches)) })?;
        self.after_run(chosen)
    }

    /// What comes after a hooked run that went well, as far as is known.
    fn after_run(&mut self, chosen: Chosen) -> Result<&[HostTensor]> {
        self.nan.in_a_row = 0;
        self.runs_done += 1;
        let HookedPart { run: hooked, fetches, .. } = self.ops.part(chosen);
        self.callbacks.after_run(&mut HookCx { run: self.run, hooked: Some((hooked, fetches)) })?;
        Ok(hooked.results())
    }

    /// A plain run: nothing else happens. What needs input must be fed.
    #[doc(alias = "sess")]
    pub fn run_plain(
        &mut self,
        what: &[&dyn IntoFetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<Vec<HostTensor>> {
        // It may have changed variables.
        self.runs_done += 1;
        self.run.session.run(what, feeds)
    }

    /// Ends training after this step, for this reason.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.run.stop.get_or_insert(reason.into());
    }
}

/// Something to be run elsewhere, with all it takes.
pub(super) struct Job {
    pub(super) hooked: HookedRun,
    pub(super) clock: Clock,
    pub(super) feeds: Vec<(String, HostTensor)>,
}

impl Job {
    pub(super) fn run(&mut self, session: &Session) -> Result<()> {
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        self.hooked.run(session, self.clock, &feeds)
    }
}

/// When the step that runs is.
fn clock(progress: &Progress) -> Clock {
    Clock { global_step: progress.global_step + 1, last_of_epoch: progress.last_of_epoch() }
}

/// Takes a batch of the input, for a run that needs one.
fn draw<'a>(
    input: &'a mut Option<&mut dyn InputSource>,
    needed: bool,
    times: &mut Times,
    opening: &mut Option<Opening>,
) -> Result<&'a [(String, HostTensor)]> {
    let begun = Instant::now();
    let batch = match input {
        Some(input) if needed => input.next()?,
        _ => &[],
    };
    if let Some(opening) = opening.take_if(|_| !batch.is_empty()) {
        log::info!("{}", opening.text(batch));
    }
    if batch.len() > MAX_FEEDS {
        let why = format!("all towers together take at most {MAX_FEEDS} inputs, not {}", batch.len());
        return Err(Error::argument(why));
    }
    times.input += begun.elapsed();
    Ok(batch)
}

impl NanCount {
    /// Counts one, and says whether to go on.
    pub(super) fn skips(&mut self) -> bool {
        self.total += 1;
        self.in_a_row += 1;
        matches!(self.policy, NanPolicy::Skip(most) if self.in_a_row <= most)
    }
}

impl Deref for StepCx<'_> {
    type Target = Progress;
    fn deref(&self) -> &Progress {
        &self.run.progress
    }
}
