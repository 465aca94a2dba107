//! Programs of asynchronous towers: which kernels read a snapshot of the variables, and which read
//! the variables themselves.

use super::commit::Commit;
use crate::kir::{BufferKind, Program, View};
use std::collections::BTreeSet;

/// Moves the kernels that need the variables themselves after all others, and returns the index of
/// the first: a tower that reads snapshots then blocks the others for as short a time as possible.
///
/// Precondition: every buffer is written by one kernel, before all that read it. Then the kernels
/// that depend on no variable, directly or indirectly, can all come first. Both halves keep their
/// order.
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

/// Returns the variables whose snapshot is read.
pub(super) fn snapshots(program: &Program, commit: &Commit) -> Vec<usize> {
    let kernels = program.kernels.iter().flat_map(|n| n.kernel.reads());
    let of = |v: &View| match program.buffer(v.buffer).kind {
        BufferKind::Snapshot(variable) => Some(variable),
        _ => None,
    };
    let all: BTreeSet<usize> = kernels.chain(commit.reads()).chain(&program.fetches).filter_map(of).collect();
    all.into_iter().collect()
}
