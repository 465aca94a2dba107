//! Where a run reads variables, when others may change them while it computes.

use crate::graph::{Frozen, NodeId, NodeKind, Role};
use std::collections::BTreeSet;

/// Where the variables that a run reads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// In place: nobody changes them while it runs.
    InPlace,
    /// In a copy made when it begins, except for what only updates need: that is computed from the variables as they are
    /// when they are updated, so that no update of another tower is lost.
    Snapshot,
}

/// The nodes that read the variables themselves, of those whose `values` are computed: what only
/// updates need, neither a cost nor a gradient; and what is fetched and depends on that, with all
/// that it is computed from, so that it reads one version of the variables, except through costs
/// and gradients.
pub(super) fn of_updates_alone(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    values: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let is_learned_from = |id: &&NodeId| matches!(graph.node(**id).role, Role::Cost | Role::Gradient);
    let learned_from = behind(graph, values.iter().filter(is_learned_from).copied());
    let mut live: BTreeSet<NodeId> =
        behind(graph, assigns.iter().copied()).difference(&learned_from).copied().collect();
    loop {
        // Nodes come after those they read. Constants and feeds are the same in any version.
        let mut computed: BTreeSet<NodeId> = BTreeSet::new();
        let mut more: Vec<NodeId> = Vec::new();
        for &id in values.difference(&learned_from) {
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
        live.extend(behind(graph, more.into_iter()).difference(&learned_from));
    }
}

/// These nodes and all whose values they are computed from.
fn behind(graph: &Frozen, roots: impl Iterator<Item = NodeId>) -> BTreeSet<NodeId> {
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
