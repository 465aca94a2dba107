//! What of a program runs on a snapshot of the variables, where towers update them without waiting for each other, and
//! what on the variables themselves.

use super::commit::Commit;
use crate::kir::{BufferKind, Program, View};
use std::collections::BTreeSet;

/// Puts the kernels that need the variables themselves behind all others, and returns where they
/// begin: so that a tower that reads snapshots keeps others from the variables as shortly as can
/// be.
///
/// Precondition: every buffer is written by one kernel, before all that read it. Then kernels that
/// need no variable, neither themselves nor by way of others, may all come first; each half keeps
/// its order.
pub(super) fn split_live(program: &mut Program) -> usize {
    let mut live: Vec<bool> =
        program.buffers.iter().map(|b| matches!(b.kind, BufferKind::Variable(_))).collect();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for node in std::mem::take(&mut program.kernels) {
        if node.kernel.reads().iter().any(|v| live[v.buffer.0 as usize]) {
            node.outputs.iter().for_each(|b| live[b.0 as usize] = true);
            after.push(node);
        } else {
            before.push(node);
        }
    }
    let live_from = before.len();
    program.kernels = before.into_iter().chain(after).collect();
    live_from
}

/// The variables of which anything reads a snapshot.
pub(super) fn snapshots(program: &Program, commit: &Commit) -> Vec<usize> {
    let kernels = program.kernels.iter().flat_map(|n| n.kernel.reads());
    let of = |v: &View| match program.buffer(v.buffer).kind {
        BufferKind::Snapshot(variable) => Some(variable),
        _ => None,
    };
    let all: BTreeSet<usize> = kernels.chain(commit.reads()).chain(&program.fetches).filter_map(of).collect();
    all.into_iter().collect()
}
