//! What must be finite for variables to change: costs, and all that updates are made from.

use crate::kir::{BufferId, Kernel, Program};
use std::collections::HashSet;

/// The buffers to check, in the order they are written.
///
/// Maps that do nothing but make next values are not looked at, only what they read: a gradient that is not finite is
/// the trainer's business, a statistic that starts at infinity is the model's.
pub(super) fn checked(program: &Program) -> Vec<BufferId> {
    let wanted: HashSet<BufferId> =
        program.fetches.iter().chain(&program.costs).chain(&program.kept).map(|v| v.buffer).collect();
    // From the last kernel to the first: whether something other than updates, by way of maps, reads it.
    let mut read_elsewhere = wanted;
    let mut late: HashSet<BufferId> = HashSet::new();
    let mut consumed: HashSet<BufferId> = program.costs.iter().map(|v| v.buffer).collect();
    let mut of_updates: HashSet<BufferId> = program.updates.iter().map(|u| u.value.buffer).collect();
    for node in program.kernels.iter().rev() {
        let waits = matches!(node.kernel, Kernel::Map(_))
            && node.outputs.iter().all(|b| of_updates.contains(b) && !read_elsewhere.contains(b));
        let reads = node.kernel.reads().into_iter().map(|v| v.buffer);
        if waits {
            late.extend(&node.outputs);
            of_updates.extend(reads);
        } else {
            read_elsewhere.extend(reads);
        }
    }
    consumed.extend(of_updates.difference(&late));
    let written = program.kernels.iter().flat_map(|n| &n.outputs);
    written.copied().filter(|b| consumed.contains(b) && program.buffer(*b).dtype.is_float()).collect()
}
