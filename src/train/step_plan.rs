//! The step plan: the compiled programs of a step, including the fetches of callbacks.

use super::cost_trend::CostTrend;
use super::step::log_overflow;
use crate::callback::{Callbacks, CollectCx, FetchHandle, Progress, TrainState};
use crate::graph::{Fetch, Frozen, NodeId, NodeKind, Role};
use crate::runtime::{Cadence, IntoFetch, Launches, Session, StepProgram};
use std::collections::{HashSet, VecDeque};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The number of runs that stay in flight after a launch. With one, the host would wait for the
/// values of the last run, which reach it some time after a GPU has computed them.
const IN_FLIGHT: usize = 2;

/// The programs of a step, and the runs in flight: at most [`IN_FLIGHT`], or those of launches of
/// several steps.
#[doc(alias = "HookedOps")]
pub(super) struct StepPlan {
    /// The fetches of callbacks in the first run of a step; a
    /// [`FetchHandle`](crate::runtime::FetchHandle) is an index.
    fetches: Vec<(Fetch, Cadence)>,
    /// Operations that run together with the first run of every step.
    step_ops: Vec<Fetch>,
    programs: Vec<PlannedOp>,
    /// The runs in flight, oldest first, with the progress they belong to.
    in_flight: VecDeque<(RunId, Progress)>,
    /// Set if a launch runs several steps.
    pub(super) launches: Option<Launches>,
    /// The runs that are queued for a launch of several steps or launched, oldest first.
    queued: VecDeque<(RunId, Progress)>,
    pub(super) costs: CostTrend,
}

/// An operation that steps run.
struct PlannedOp {
    op: Fetch,
    /// For the first run of a step: with everything that callbacks fetch and run with every step.
    first: PlannedRun,
    /// For further runs of a step: the operation alone.
    alone: PlannedRun,
}

/// A program, and whether it depends on the input.
pub(super) struct PlannedRun {
    pub(super) program: StepProgram,
    pub(super) needs_input: bool,
}

/// Which program a run uses.
#[derive(Clone, Copy)]
pub(super) struct RunId {
    op: usize,
    first: bool,
}

impl StepPlan {
    pub(super) fn new(fetches: Vec<(Fetch, Cadence)>, step_ops: Vec<Fetch>) -> StepPlan {
        StepPlan {
            fetches,
            step_ops,
            programs: Vec::new(),
            in_flight: VecDeque::new(),
            launches: None,
            queued: VecDeque::new(),
            costs: CostTrend::new(),
        }
    }

    /// The run of an operation: the first run of a step, or a further one. Plans the operation if it is new.
    pub(super) fn find(&mut self, graph: &Frozen, op: &Fetch, first: bool) -> Result<RunId> {
        let at = match self.programs.iter().position(|p| p.op == *op) {
            Some(at) => at,
            None => {
                let is_cost = |(fetch, _): &(Fetch, _)| {
                    graph.nodes().get(fetch.node.0 as usize).is_some_and(|n| n.role == Role::Cost)
                };
                self.costs.fetched = self.fetches.iter().position(is_cost).map(FetchHandle);
                self.programs.push(self.plan(graph, op)?);
                self.programs.len() - 1
            }
        };
        Ok(RunId { op: at, first })
    }

    fn plan(&self, graph: &Frozen, op: &Fetch) -> Result<PlannedOp> {
        let operations = || std::iter::once(op).chain(&self.step_ops);
        let mut program = StepProgram::new(&operations().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>());
        for (fetch, cadence) in &self.fetches {
            program.declare(fetch, *cadence)?;
        }
        let fetched = self.fetches.iter().map(|(f, _)| f);
        let first = PlannedRun { program, needs_input: needs_input(graph, operations().chain(fetched)) };
        let program = StepProgram::new(&[op]);
        let alone = PlannedRun { program, needs_input: needs_input(graph, std::iter::once(op)) };
        Ok(PlannedOp { op: op.clone(), first, alone })
    }

    pub(super) fn run(&mut self, id: RunId) -> &mut PlannedRun {
        let planned = &mut self.programs[id.op];
        if id.first { &mut planned.first } else { &mut planned.alone }
    }

    /// Notes that a run was launched, and collects the oldest one if too many are in flight.
    pub(super) fn launched(
        &mut self,
        id: RunId,
        progress: Progress,
        session: &Session,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        self.in_flight.push_back((id, progress));
        self.collect_runs(IN_FLIGHT, session, callbacks)
    }

    /// Checks that no callback needs a value right after its run, for launches of several steps.
    pub(super) fn check_several_steps(&self) -> Result<()> {
        match self.fetches.iter().find(|(_, cadence)| *cadence == Cadence::EveryRun) {
            Some((fetch, _)) => {
                let why = format!("a callback fetches {} with every run (Cadence::EveryRun)", fetch.name);
                Err(Error::argument(why).note("fetch it with Cadence::Deferred or Cadence::EverySteps"))
            }
            None => Ok(()),
        }
    }

    /// Notes that a run was queued, and collects all launches but the last.
    pub(super) fn was_queued(
        &mut self,
        id: RunId,
        state: &mut TrainState,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        self.queued.push_back((id, state.progress.clone()));
        self.collect_launches(1, state, callbacks)
    }

    /// Collects launches of several steps until at most `in_flight` are left.
    pub(super) fn collect_launches(
        &mut self,
        in_flight: usize,
        state: &mut TrainState,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        while state.session.launched()? > in_flight {
            for result in state.session.collect_launched()? {
                let Some((id, progress)) = self.queued.pop_front() else { return Ok(()) };
                let step = progress.global_step + 1;
                match result {
                    Ok(values) => {
                        state.skipped.in_a_row = 0;
                        self.run(id).program.deliver(values);
                        self.hand_out(id, progress, callbacks)?;
                    }
                    Err(e) if e.kind() == ErrorKind::Overflow => log_overflow(step),
                    Err(e) => {
                        let skips = e.kind() == ErrorKind::NotFinite && {
                            state.skipped.total += 1;
                            state.skipped.in_a_row += 1;
                            self.launches.is_some_and(|l| state.skipped.in_a_row <= l.skip_limit)
                        };
                        if !skips {
                            return Err(self.costs.explain(e).within(format!("step {step}")));
                        }
                        log::warn!("skipped step {step} ({} skipped so far): {e}", state.skipped.total);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the runs in flight, if there are any, and hands their values to the callbacks.
    pub(super) fn collect(&mut self, state: &mut TrainState, callbacks: &mut Callbacks) -> Result<()> {
        if self.launches.is_some() {
            state.session.launch_queued()?;
            self.collect_launches(0, state, callbacks)?;
        }
        self.collect_runs(0, &state.session, callbacks)
    }

    /// Collects runs until at most `in_flight` are left.
    fn collect_runs(&mut self, in_flight: usize, session: &Session, callbacks: &mut Callbacks) -> Result<()> {
        while self.in_flight.len() > in_flight {
            let Some((id, progress)) = self.in_flight.pop_front() else { break };
            self.collect_run(id, progress, session, callbacks)?;
        }
        Ok(())
    }

    fn collect_run(
        &mut self,
        id: RunId,
        progress: Progress,
        session: &Session,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        let collected = self.run(id).program.collect(session);
        let step = progress.global_step + 1;
        if matches!(&collected, Err(e) if e.kind() == ErrorKind::Overflow) {
            log_overflow(step);
            return Ok(());
        }
        collected.map_err(|e| self.costs.explain(e).within(format!("step {step}")))?;
        self.hand_out(id, progress, callbacks)
    }

    /// Hands the values of a run that succeeded to the callbacks.
    pub(super) fn hand_out(
        &mut self,
        id: RunId,
        progress: Progress,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        let costs = self.costs.fetched;
        let values = CollectCx { progress, program: Some(&self.run(id).program) };
        callbacks.collect(&values)?;
        if let Some(cost) = costs.filter(|_| id.first).and_then(|cost| values.scalar(cost)) {
            self.costs.add(cost);
        }
        Ok(())
    }
}

/// Returns whether any of these depends on a placeholder.
fn needs_input<'a>(graph: &Frozen, what: impl IntoIterator<Item = &'a Fetch>) -> bool {
    depends_on(graph, what, |kind| matches!(kind, NodeKind::Placeholder))
}

/// Returns whether any of these is or depends on a node whose kind `is` accepts.
pub(super) fn depends_on<'a>(
    graph: &Frozen,
    what: impl IntoIterator<Item = &'a Fetch>,
    is: impl Fn(&NodeKind) -> bool,
) -> bool {
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut stack: Vec<NodeId> = what.into_iter().map(|f| f.node).collect();
    while let Some(id) = stack.pop() {
        let Some(node) = graph.nodes().get(id.0 as usize).filter(|_| seen.insert(id)) else { continue };
        if is(&node.kind) {
            return true;
        }
        stack.extend(node.inputs.iter().map(|t| t.node).chain(node.runs.iter().copied()));
    }
    false
}
