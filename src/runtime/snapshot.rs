//! Which reads of variables use a snapshot, when other towers may update variables during a run.

use crate::graph::{Frozen, NodeId, NodeKind, Role};
use std::collections::BTreeSet;

/// How a run reads variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Directly: nothing changes the variables during the run.
    InPlace,
    /// From a copy made at its start, except for values that only updates need: those are computed
    /// from the current variables at the update, so that no update of another tower is lost.
    Snapshot,
}

/// Returns the nodes among `values` that read the current variables instead of the snapshot: those
/// that only updates need (not costs and gradients), and the fetches that depend on them, with all
/// their ancestors, so that they read one version of the variables except through costs and
/// gradients.
pub(super) fn live_nodes(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    values: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let is_cost_or_gradient = |id: &&NodeId| matches!(graph.node(**id).role, Role::Cost | Role::Gradient);
    let for_gradients = with_ancestors(graph, values.iter().filter(is_cost_or_gradient).copied());
    let mut live: BTreeSet<NodeId> =
        with_ancestors(graph, assigns.iter().copied()).difference(&for_gradients).copied().collect();
    loop {
        // Nodes come after their inputs. Constants and feeds are the same in any version.
        let mut computed: BTreeSet<NodeId> = BTreeSet::new();
        let mut more: Vec<NodeId> = Vec::new();
        for &id in values.difference(&for_gradients) {
            let node = graph.node(id);
            let reads = |test: &dyn Fn(NodeId) -> bool| node.inputs.iter().any(|t| test(t.node));
            let is_variable = |n: NodeId| matches!(graph.node(n).kind, NodeKind::Read(_));
            let is_live = live.contains(&id);
            if matches!(node.kind, NodeKind::Current(_))
                || is_live && reads(&is_variable)
                || reads(&|n| computed.contains(&n))
            {
                computed.insert(id);
                more.extend((!is_live).then_some(id));
            }
        }
        if more.is_empty() {
            return live;
        }
        live.extend(with_ancestors(graph, more.into_iter()).difference(&for_gradients));
    }
}

/// Returns these nodes and all their ancestors.
fn with_ancestors(graph: &Frozen, roots: impl Iterator<Item = NodeId>) -> BTreeSet<NodeId> {
    let (mut seen, mut stack) = (BTreeSet::new(), roots.collect::<Vec<_>>());
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            let node = graph.node(id);
            let value = |i: usize| !matches!(&node.kind, NodeKind::Op(op) if op.shape_only(i));
            stack.extend(node.inputs.iter().enumerate().filter(|(i, _)| value(*i)).map(|(_, t)| t.node));
        }
    }
    seen
}
