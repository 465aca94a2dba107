//! The program of a training step, with fetches that are due in every run, every few steps or once
//! per epoch.
//!
//! A [`StepProgram`] has two compiled programs: one with the fetches of every run, and one with all
//! declared fetches. A run in which more is due uses the second and delivers only what is due. Both
//! are compiled when a shape is first seen, so that no later step waits for a compilation.

use super::in_flight::InFlight;
use super::session::RunKind;
use super::several_steps::Launches;
use super::{IntoFetch, Session};
use crate::graph::Fetch;
use std::collections::VecDeque;
use tensorpack_tensor::{Error, HostTensor, Result};

/// How often a fetch is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// With every run.
    EveryRun,
    /// With the runs of steps whose number is a multiple of this.
    EverySteps(u64),
    /// With the last step of every epoch.
    EveryEpoch,
    /// With every run, but possibly after later ones have started, so that an accelerator does not
    /// wait for the host. See [`StepProgram::deferred`].
    #[doc(alias = "Collected")]
    Deferred,
}

/// The time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The number of the step, starting at 1.
    pub global_step: u64,
    /// Whether it is the last step of its epoch.
    pub last_of_epoch: bool,
}

impl Cadence {
    /// Returns whether every run fetches it.
    fn is_frequent(self) -> bool {
        matches!(self, Cadence::EveryRun | Cadence::Deferred)
    }

    fn is_due(self, clock: Clock) -> bool {
        match self {
            Cadence::EveryRun | Cadence::Deferred => true,
            Cadence::EverySteps(k) => clock.global_step.is_multiple_of(k),
            Cadence::EveryEpoch => clock.last_of_epoch,
        }
    }
}

/// The handle of a declared fetch, for reading its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "Declared")]
#[doc(alias = "Fetched")]
pub struct FetchHandle(pub(crate) usize);

/// The operations of a step, and the fetches declared for them.
#[derive(Debug)]
#[doc(alias = "HookedRun")]
pub struct StepProgram {
    operations: Vec<Fetch>,
    declared: Vec<(Fetch, Cadence)>,
    /// The fetches of every run: the operations, then the frequent fetches.
    frequent: Vec<Fetch>,
    /// The operations, then all declared fetches.
    all: Vec<Fetch>,
    /// For each declared fetch, the index of its value in a run of `frequent`, and in a run of
    /// `all`.
    indices: Vec<(Option<usize>, usize)>,
    /// The shapes of all feeds for which both programs are compiled.
    compiled_for: Vec<Vec<usize>>,
    values: Vec<HostTensor>,
    /// Whether `values` are those of `all`.
    ran_all: bool,
    /// Which declared fetches were due in the last run.
    due: Vec<bool>,
    /// The shapes of all feeds for which the program of several steps is compiled, and whether there is
    /// one.
    compiled_steps_for: Vec<(Vec<usize>, bool)>,
    /// Runs that were launched and not yet collected, oldest first.
    in_flight: VecDeque<InFlight>,
}

impl StepProgram {
    /// Creates a program that runs these operations.
    pub fn new(operations: &[&dyn IntoFetch]) -> StepProgram {
        let operations: Vec<Fetch> = operations.iter().map(|f| f.fetch()).collect();
        StepProgram {
            frequent: operations.clone(),
            all: operations.clone(),
            operations,
            declared: Vec::new(),
            indices: Vec::new(),
            compiled_for: Vec::new(),
            values: Vec::new(),
            ran_all: false,
            due: Vec::new(),
            compiled_steps_for: Vec::new(),
            in_flight: VecDeque::new(),
        }
    }

    /// Declares a fetch. Declare all of them before the first run.
    pub fn declare(&mut self, fetch: &dyn IntoFetch, cadence: Cadence) -> Result<FetchHandle> {
        if cadence == Cadence::EverySteps(0) {
            return Err(Error::argument("a fetch every 0 steps is never due"));
        }
        self.declared.push((fetch.fetch(), cadence));
        self.due.push(false);
        let frequent = self.declared.iter().filter(|(_, c)| c.is_frequent());
        self.frequent = self.operations.iter().chain(frequent.map(|(f, _)| f)).cloned().collect();
        self.all = self.operations.iter().chain(self.declared.iter().map(|(f, _)| f)).cloned().collect();
        let results = self.result_count();
        let mut next_frequent = results;
        self.indices = self
            .declared
            .iter()
            .enumerate()
            .map(|(i, (_, cadence))| {
                let frequent = cadence.is_frequent().then(|| {
                    next_frequent += 1;
                    next_frequent - 1
                });
                (frequent, results + i)
            })
            .collect();
        Ok(FetchHandle(self.declared.len() - 1))
    }

    /// Returns the number of operations that are tensors, which have values.
    fn result_count(&self) -> usize {
        self.operations.iter().filter(|f| f.output.is_some()).count()
    }

    /// Runs once and counts it.
    pub fn run(&mut self, session: &Session, clock: Clock, feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.prepare(session, feeds)?;
        let more = self.declared.iter().any(|(_, c)| c.is_due(clock) && !c.is_frequent());
        let fetches = if more { &self.all } else { &self.frequent };
        self.ran_all = more;
        session.run_as(RunKind::Step, fetches, feeds, &mut self.values)?;
        for ((_, cadence), due) in self.declared.iter().zip(&mut self.due) {
            *due = cadence.is_due(clock);
        }
        Ok(())
    }

    /// Compiles both programs for these feeds, unless they are cached. Clears what is due, so that
    /// a run that fails delivers nothing, in particular no value of an earlier run.
    fn prepare(&mut self, session: &Session, feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.due.fill(false);
        let sizes = || feeds.iter().flat_map(|(_, t)| t.sizes());
        if !self.compiled_for.iter().any(|s| s.iter().eq(sizes())) {
            session.prepare(&self.all.iter().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>())?;
            session.compile(&self.all, feeds)?;
            session.compile(&self.frequent, feeds)?;
            self.compiled_for.push(sizes().copied().collect());
        }
        Ok(())
    }

    /// Compiles both programs for these feeds, and returns the memory that is planned for the
    /// values of a run, if the engine knows it.
    pub(crate) fn planned_bytes(
        &mut self,
        session: &Session,
        feeds: &[(&str, &HostTensor)],
    ) -> Result<Option<usize>> {
        self.prepare(session, feeds)?;
        let all: Vec<&dyn IntoFetch> = self.all.iter().map(|f| f as &dyn IntoFetch).collect();
        session.compiled_bytes(&all, feeds)
    }

    /// Returns whether a run at this time may stay in flight while the next one starts, because its
    /// values are not needed before. The last run of an epoch is always collected at once.
    pub(crate) fn can_stay_in_flight(&self, clock: Clock) -> bool {
        let can_wait = |c: Cadence| c == Cadence::Deferred || !c.is_due(clock);
        let no_results = self.operations.iter().all(|f| f.output.is_none());
        no_results && !clock.last_of_epoch && self.declared.iter().all(|(_, c)| can_wait(*c))
    }

    /// Launches and counts a run without waiting for it. Returns false and does nothing if the
    /// engine runs synchronously.
    pub(crate) fn launch(&mut self, session: &Session, feeds: &[(&str, &HostTensor)]) -> Result<bool> {
        self.prepare(session, feeds)?;
        let launched = session.launch(&self.frequent, feeds)?;
        let is_launched = launched.is_some();
        self.in_flight.extend(launched);
        Ok(is_launched)
    }

    /// Prepares the queue for a run with these feeds: before the first step of these shapes, compiles
    /// all programs for them, and launches the queue if the run needs another program than those queued.
    /// Returns false if the run cannot be queued but must be launched by itself.
    pub(crate) fn prepare_queue(
        &mut self,
        session: &Session,
        feeds: &[(&str, &HostTensor)],
        launches: Launches,
    ) -> Result<bool> {
        self.prepare(session, feeds)?;
        let sizes = || feeds.iter().flat_map(|(_, t)| t.sizes());
        let can_queue = match self.compiled_steps_for.iter().find(|(s, _)| s.iter().eq(sizes())) {
            Some((_, can_queue)) => *can_queue,
            None => {
                let can_queue = session.compile_steps(&self.frequent, feeds, launches.steps)?;
                self.compiled_steps_for.push((sizes().copied().collect(), can_queue));
                can_queue
            }
        };
        if can_queue {
            session.prepare_queue(&self.frequent, feeds, launches)?;
        }
        Ok(can_queue)
    }

    /// Queues and counts a run, which is launched together with others: see
    /// [`Session::queue_step`]. Call [`StepProgram::prepare_queue`] before.
    pub(crate) fn queue(
        &mut self,
        session: &Session,
        feeds: &[(&str, &HostTensor)],
        launches: Launches,
        skipped_before: u32,
    ) -> Result<()> {
        session.queue_step(&self.frequent, feeds, launches, skipped_before)
    }

    /// Stores the fetches of a run that was launched together with others.
    pub(crate) fn deliver(&mut self, values: Vec<HostTensor>) {
        (self.values, self.ran_all) = (values, false);
    }

    /// Waits for the oldest run in flight and stores its fetches.
    pub(crate) fn collect(&mut self, session: &Session) -> Result<()> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(()) };
        self.ran_all = false;
        session.collect(oldest, &mut self.values)
    }

    /// Returns the values of the operations that are tensors, from the last run.
    pub fn results(&self) -> &[HostTensor] {
        &self.values[..self.result_count().min(self.values.len())]
    }

    /// Returns the value of a fetch from the last run, or `None` if it was not due or is
    /// [`Cadence::Deferred`].
    pub fn value(&self, handle: FetchHandle) -> Option<&HostTensor> {
        let (_, cadence) = self.declared.get(handle.0)?;
        let delivered = self.due[handle.0] && *cadence != Cadence::Deferred;
        if delivered { self.fetched(handle) } else { None }
    }

    /// Returns the value of a [`Cadence::Deferred`] fetch, from the run that was collected last.
    #[doc(alias = "collected")]
    pub fn deferred(&self, handle: FetchHandle) -> Option<&HostTensor> {
        let (_, cadence) = self.declared.get(handle.0)?;
        if *cadence == Cadence::Deferred { self.fetched(handle) } else { None }
    }

    fn fetched(&self, handle: FetchHandle) -> Option<&HostTensor> {
        let (frequent, all) = self.indices[handle.0];
        let index = if self.ran_all { Some(all) } else { frequent };
        index.and_then(|i| self.values.get(i))
    }
}
