//! The step plan: the compiled programs of a step, including the fetches of callbacks.

use super::cost_trend::CostTrend;
use crate::callback::{Callbacks, CollectCx, FetchHandle, Progress};
use crate::graph::{Fetch, Frozen, NodeId, NodeKind, Role};
use crate::runtime::{Cadence, IntoFetch, Session, StepProgram};
use std::collections::HashSet;
use tensorpack_tensor::Result;

/// The programs of a step, and the run in flight. At most one run is in flight.
#[doc(alias = "HookedOps")]
pub(super) struct StepPlan {
    /// The fetches of callbacks in the first run of a step; a
    /// [`FetchHandle`](crate::runtime::FetchHandle) is an index.
    fetches: Vec<(Fetch, Cadence)>,
    /// Operations that run together with the first run of every step.
    step_ops: Vec<Fetch>,
    programs: Vec<PlannedOp>,
    /// The run in flight, with the progress it belongs to.
    in_flight: Option<(RunId, Progress)>,
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
        StepPlan { fetches, step_ops, programs: Vec::new(), in_flight: None, costs: CostTrend::new() }
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

    /// Notes that a run was launched, and collects the one that was in flight before it.
    pub(super) fn launched(
        &mut self,
        id: RunId,
        progress: Progress,
        session: &Session,
        callbacks: &mut Callbacks,
    ) -> Result<()> {
        match self.in_flight.replace((id, progress)) {
            Some((id, progress)) => self.collect_run(id, progress, session, callbacks),
            None => Ok(()),
        }
    }

    /// Waits for the run in flight, if there is one, and hands its values to the callbacks.
    pub(super) fn collect(&mut self, session: &Session, callbacks: &mut Callbacks) -> Result<()> {
        match self.in_flight.take() {
            Some((id, progress)) => self.collect_run(id, progress, session, callbacks),
            None => Ok(()),
        }
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
