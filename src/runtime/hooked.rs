//! Hooked runs: the runs that training counts, with fetches that are due every run, every few steps or once an epoch.
//!
//! There are two programs for a hooked run: one with what every run fetches, and one with everything declared. A run
//! in which something more is due uses the second and delivers only what is due. Both are made when a shape is first
//! seen, so that no step waits for a program later.

use super::launched::Launched;
use super::session::RunKind;
use super::{IntoFetch, Session};
use crate::graph::Fetch;
use std::collections::VecDeque;
use tensorpack_tensor::{Error, HostTensor, Result};

/// How often a fetch is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// With every run.
    EveryRun,
    /// With runs of steps whose number is a multiple of this.
    EverySteps(u64),
    /// With the last step of every epoch.
    EveryEpoch,
    /// With every run, but perhaps after the next has begun: an accelerator need not wait until somebody has looked at it.
    /// See [`HookedRun::collected`].
    Collected,
}

/// When a run happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The number of the step, from 1.
    pub global_step: u64,
    /// Whether it is the last of its epoch.
    pub last_of_epoch: bool,
}

impl Cadence {
    /// Whether every run fetches it.
    fn is_frequent(self) -> bool {
        matches!(self, Cadence::EveryRun | Cadence::Collected)
    }

    fn is_due(self, clock: Clock) -> bool {
        match self {
            Cadence::EveryRun | Cadence::Collected => true,
            Cadence::EverySteps(k) => clock.global_step.is_multiple_of(k),
            Cadence::EveryEpoch => clock.last_of_epoch,
        }
    }
}

/// A fetch that was declared, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Declared(usize);

/// Something to run step after step, with what is to be fetched along.
#[derive(Debug)]
pub struct HookedRun {
    what: Vec<Fetch>,
    declared: Vec<(Fetch, Cadence)>,
    /// What every run fetches: the operations, then the fetches of every run.
    often: Vec<Fetch>,
    /// All of it.
    all: Vec<Fetch>,
    /// For each declared fetch, where its value is when only what is frequent ran, and when all did.
    places: Vec<(Option<usize>, usize)>,
    seen: Vec<Vec<usize>>,
    values: Vec<HostTensor>,
    /// The program that ran last: what `values` are values of.
    ran_all: bool,
    due: Vec<bool>,
    /// Runs that go on by themselves, the oldest first.
    launched: VecDeque<Launched>,
}

impl HookedRun {
    /// A hooked run of these operations.
    pub fn new(what: &[&dyn IntoFetch]) -> HookedRun {
        let what: Vec<Fetch> = what.iter().map(|f| f.fetch()).collect();
        HookedRun {
            often: what.clone(),
            all: what.clone(),
            what,
            declared: Vec::new(),
            places: Vec::new(),
            seen: Vec::new(),
            values: Vec::new(),
            ran_all: false,
            due: Vec::new(),
            launched: VecDeque::new(),
        }
    }

    /// Declares a fetch. All are declared before the first run.
    pub fn declare(&mut self, fetch: &dyn IntoFetch, cadence: Cadence) -> Result<Declared> {
        if cadence == Cadence::EverySteps(0) {
            return Err(Error::argument("a fetch every 0 steps is never due"));
        }
        self.declared.push((fetch.fetch(), cadence));
        self.due.push(false);
        let frequent = self.declared.iter().filter(|(_, c)| c.is_frequent());
        self.often = self.what.iter().chain(frequent.map(|(f, _)| f)).cloned().collect();
        self.all = self.what.iter().chain(self.declared.iter().map(|(f, _)| f)).cloned().collect();
        let tensors = |list: &[Fetch]| list.iter().filter(|f| f.output.is_some()).count();
        let before = tensors(&self.what);
        let mut frequent = before;
        self.places = self
            .declared
            .iter()
            .enumerate()
            .map(|(i, (_, cadence))| {
                let often = cadence.is_frequent().then(|| {
                    frequent += 1;
                    frequent - 1
                });
                (often, before + i)
            })
            .collect();
        Ok(Declared(self.declared.len() - 1))
    }

    /// Runs once and counts it.
    pub fn run(&mut self, session: &Session, clock: Clock, feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.make_ready(session, feeds)?;
        let more = self.declared.iter().any(|(_, c)| c.is_due(clock) && !c.is_frequent());
        let fetches = if more { &self.all } else { &self.often };
        self.ran_all = more;
        session.run_as(RunKind::Hooked, fetches, feeds, &mut self.values)?;
        for ((_, cadence), due) in self.declared.iter().zip(&mut self.due) {
            *due = cadence.is_due(clock);
        }
        Ok(())
    }

    /// Makes the programs for what is fed, if there are none yet. Until it has run nothing is delivered: a run that fails
    /// delivers nothing, least of all what an earlier one did.
    fn make_ready(&mut self, session: &Session, feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.due.fill(false);
        if !self.seen.iter().any(|s| s.iter().eq(feeds.iter().flat_map(|(_, t)| t.sizes()))) {
            session.prepare(&self.all.iter().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>())?;
            session.compile(&self.all, feeds)?;
            session.compile(&self.often, feeds)?;
            self.seen.push(feeds.iter().flat_map(|(_, t)| t.sizes().to_vec()).collect());
        }
        Ok(())
    }

    /// Whether nobody needs to see what a run at this moment fetches before the next one begins. The last run of an epoch is
    /// always waited for.
    pub(crate) fn can_be_launched(&self, clock: Clock) -> bool {
        let waits = |c: Cadence| c == Cadence::Collected || !c.is_due(clock);
        let operations = self.what.iter().all(|f| f.output.is_none());
        operations && !clock.last_of_epoch && self.declared.iter().all(|(_, c)| waits(*c))
    }

    /// Starts a run that goes on by itself, and counts it. Returns false, and does nothing, where the engine has no such
    /// runs.
    pub(crate) fn launch(&mut self, session: &Session, feeds: &[(&str, &HostTensor)]) -> Result<bool> {
        self.make_ready(session, feeds)?;
        let launched = session.launch(&self.often, feeds)?;
        let is_launched = launched.is_some();
        self.launched.extend(launched);
        Ok(is_launched)
    }

    /// Waits for the oldest run that was launched, and takes what it fetched.
    pub(crate) fn collect(&mut self, session: &Session) -> Result<()> {
        let Some(launched) = self.launched.pop_front() else { return Ok(()) };
        self.ran_all = false;
        session.collect(launched, &mut self.values)
    }

    /// The values of the tensors among what was to be run, of the last run.
    pub fn results(&self) -> &[HostTensor] {
        let n = self.what.iter().filter(|f| f.output.is_some()).count();
        &self.values[..n.min(self.values.len())]
    }

    /// What the last run delivered for a declared fetch; `None` if it was not due, or is [`Cadence::Collected`].
    pub fn value(&self, declared: Declared) -> Option<&HostTensor> {
        let is_later = self.declared[declared.0].1 == Cadence::Collected;
        if self.due[declared.0] && !is_later { self.fetched(declared) } else { None }
    }

    /// What a [`Cadence::Collected`] fetch has brought, of the run that was waited for last.
    pub fn collected(&self, declared: Declared) -> Option<&HostTensor> {
        let is_later = self.declared[declared.0].1 == Cadence::Collected;
        if is_later { self.fetched(declared) } else { None }
    }

    fn fetched(&self, declared: Declared) -> Option<&HostTensor> {
        let (often, all) = self.places[declared.0];
        let at = if self.ran_all { Some(all) } else { often };
        at.and_then(|i| self.values.get(i))
    }
}
