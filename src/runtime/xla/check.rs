//! What must be finite for variables to change: costs, and all that updates are made from.

use crate::kir::{self, BufferId, Kernel, Program};
use std::collections::{HashMap, HashSet};

/// The buffers to check, in the order they are written.
///
/// Maps that do nothing but make next values, element by element, are not looked at, only what they read: a gradient
/// that is not finite is the trainer's business, a statistic that starts at infinity is the model's.
pub(super) fn checked(program: &Program) -> Vec<BufferId> {
    let elsewhere = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let mut read_elsewhere: HashSet<BufferId> = elsewhere.map(|v| v.buffer).collect();
    // What updates are made from, with how many elements are made from it.
    let mut of_updates: HashMap<BufferId, usize> =
        program.updates.iter().map(|u| (u.value.buffer, u.value.len())).collect();
    let mut late: HashSet<BufferId> = HashSet::new();
    // From the last kernel to the first, so that all who read a result are known.
    for node in program.kernels.iter().rev() {
        let waits = |b: &BufferId| {
            of_updates.get(b) == Some(&program.buffer(*b).len()) && !read_elsewhere.contains(b)
        };
        match &node.kernel {
            Kernel::Map(body) if node.outputs.iter().all(waits) => {
                late.extend(&node.outputs);
                let elements = kir::elements(&body.sizes);
                for view in &body.operands {
                    let most = of_updates.entry(view.buffer).or_default();
                    *most = elements.max(*most);
                }
            }
            kernel => read_elsewhere.extend(kernel.reads().iter().map(|v| v.buffer)),
        }
    }
    let is_checked = |b: &BufferId| {
        let consumed = of_updates.contains_key(b) && !late.contains(b);
        let cost = program.costs.iter().any(|v| v.buffer == *b);
        (consumed || cost) && program.buffer(*b).dtype.is_float()
    };
    program.kernels.iter().flat_map(|n| &n.outputs).copied().filter(is_checked).collect()
}
