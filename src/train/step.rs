//! One iteration: what it is, and what it can do.

use crate::callback::{Callbacks, HookCx, Progress, Run};
use crate::graph::{Fetch, Frozen, NodeId, NodeKind};
use crate::input::InputSource;
use crate::runtime::{Cadence, Clock, Declared, HookedRun, IntoFetch, MAX_FEEDS};
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
}

struct HookedOp {
    what: Fetch,
    /// With all that is fetched and run along, for the first run of a step.
    first: HookedRun,
    fetches: Vec<Declared>,
    first_needs_input: bool,
    /// Alone, for further runs of a step.
    alone: HookedRun,
    alone_needs_input: bool,
}

impl HookedOps {
    pub(super) fn new(declared: Vec<(Fetch, Cadence)>, along: Vec<Fetch>) -> HookedOps {
        HookedOps { declared, along, ops: Vec::new() }
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
        self.ops.push(HookedOp {
            first_needs_input: needs_input(graph, all),
            alone_needs_input: needs_input(graph, std::iter::once(what)),
            alone: HookedRun::new(&[what]),
            what: what.clone(),
            first,
            fetches,
        });
        Ok(self.ops.len() - 1)
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
    pub(super) steps_per_epoch: u64,
    /// Batches in a pass over the data, if that is known.
    pub(super) pass: Option<u64>,
}

impl Opening {
    /// `batch 128 = 1 tower x 128; an epoch is 468 steps, 468 batches, 1.00 passes over the data`.
    fn text(&self, batch: &[(String, HostTensor)]) -> String {
        let Opening { towers, steps_per_epoch: steps, pass } = *self;
        let inputs = (batch.len() / towers.max(1)).max(1);
        let rows = batch.iter().step_by(inputs).map(|(_, value)| value.sizes().first().copied().unwrap_or(1));
        let rows: Vec<usize> = rows.collect();
        let each = rows.first().copied().unwrap_or(0);
        let total: usize = rows.iter().sum();
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
    #[doc(alias = "hooked_sess")]
    pub fn run(&mut self, what: &Fetch) -> Result<&[HostTensor]> {
        let at = self.ops.find(self.run.session.graph(), what)?;
        let op = &mut self.ops.ops[at];
        let first = self.runs == 0;
        self.runs += 1;
        let (hooked, needs_input, fetches) = match first {
            true => (&mut op.first, op.first_needs_input, op.fetches.as_slice()),
            false => (&mut op.alone, op.alone_needs_input, &[][..]),
        };
        let begun = Instant::now();
        // First, for a wait may be cut short, and then nothing of this run has happened.
        let batch = match &mut self.input {
            Some(input) if needs_input => input.next()?,
            _ => &[],
        };
        if let Some(opening) = self.opening.take_if(|_| !batch.is_empty()) {
            log::info!("{}", opening.text(batch));
        }
        if batch.len() > MAX_FEEDS {
            let why = format!("all towers together take at most {MAX_FEEDS} inputs, not {}", batch.len());
            return Err(Error::argument(why));
        }
        self.times.input += begun.elapsed();
        self.callbacks.before_run(&mut HookCx { run: self.run, hooked: None })?;
        let drawn = Instant::now();
        let nothing = HostTensor::scalar(0u8);
        let mut feeds = [("", &nothing); MAX_FEEDS];
        feeds.iter_mut().zip(batch).for_each(|(feed, (name, value))| *feed = (name, value));
        let progress = &self.run.progress;
        let clock = Clock { global_step: progress.global_step + 1, last_of_epoch: progress.last_of_epoch() };
        let ran = hooked.run(&self.run.session, clock, &feeds[..batch.len()]);
        self.times.compute += drawn.elapsed();
        match ran {
            Err(e) if e.kind() == ErrorKind::NotFinite && self.nan.skips() => {
                let step = progress.global_step + 1;
                log::warn!("step {step} was skipped, {} so far: {e}", self.nan.total);
                // Its random numbers are spent, as those of any run.
                let session = &self.run.session;
                session.set_run_index(session.run_index()? + 1)?;
                self.runs_done += 1;
                return Ok(&[]);
            }
            Err(e) if e.kind() == ErrorKind::NotFinite => {
                return Err(e.within(format!("step {}", progress.global_step + 1)));
            }
            ran => ran?,
        }
        self.nan.in_a_row = 0;
        self.runs_done += 1;
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

impl NanCount {
    /// Counts one, and says whether to go on.
    fn skips(&mut self) -> bool {
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
