//! Finds the results that must be finite before a run changes any variable.
//!
//! These are costs, the inputs of updates, and next values. The rule is the same for all engines;
//! each engine checks them before the first write.

use crate::kir::{BufferId, Kernel, Program};
use std::collections::{HashMap, HashSet};

/// The role of a result that only an update needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) variable: usize,
    /// Whether it only computes next values, element by element.
    pub(super) late: bool,
}

/// Fills in [`Program::finite`], and returns the results that only updates need.
///
/// Late results are not in [`Program::finite`], only their inputs are: engines compute late results
/// while they write variables, and check only the next values.
pub(super) fn find(program: &mut Program) -> HashMap<BufferId, Part> {
    let elsewhere = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let mut read_elsewhere: HashSet<BufferId> = elsewhere.map(|v| v.buffer).collect();
    // The inputs of updates, with the number of elements computed from each.
    let mut of_updates: HashMap<BufferId, usize> =
        program.updates.iter().map(|u| (u.value.buffer, u.value.len())).collect();
    let mut late: HashSet<BufferId> = HashSet::new();
    // From the last kernel to the first, so that all readers of a result are known.
    for node in program.kernels.iter().rev() {
        let waits = |b: &BufferId| {
            of_updates.get(b) == Some(&program.buffer(*b).len()) && !read_elsewhere.contains(b)
        };
        match &node.kernel {
            Kernel::Map(body) if node.outputs.iter().all(waits) => {
                late.extend(&node.outputs);
                let elements = crate::kir::elements(&body.sizes);
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
    let checked = program.kernels.iter().flat_map(|n| &n.outputs).copied().filter(is_checked).collect();
    let parts = of_variables(program);
    program.finite = checked;
    parts.into_iter().map(|(b, variable)| (b, Part { variable, late: late.contains(&b) })).collect()
}

/// Results that neither a cost nor a gradient nor a fetch needs, each with the variable whose
/// update needs it first.
fn of_variables(program: &Program) -> HashMap<BufferId, usize> {
    let makers: HashMap<BufferId, usize> = program
        .kernels
        .iter()
        .enumerate()
        .flat_map(|(i, n)| n.outputs.iter().map(move |&b| (b, i)))
        .collect();
    // The results that `from` depends on, including itself, except those seen before.
    let behind = |from: BufferId, seen: &mut HashSet<BufferId>| {
        let (mut stack, mut found) = (vec![from], Vec::new());
        while let Some(b) = stack.pop() {
            if let Some(&maker) = makers.get(&b)
                && seen.insert(b)
            {
                found.push(b);
                stack.extend(program.kernels[maker].kernel.reads().iter().map(|v| v.buffer));
            }
        }
        found
    };
    let mut seen = HashSet::new();
    for view in program.fetches.iter().chain(&program.costs).chain(&program.kept) {
        behind(view.buffer, &mut seen);
    }
    let mut updates: Vec<_> = program.updates.iter().collect();
    updates.sort_by_key(|u| makers.get(&u.value.buffer));
    let mut variables = HashMap::new();
    for u in updates {
        variables.extend(behind(u.value.buffer, &mut seen).into_iter().map(|b| (b, u.variable)));
    }
    variables
}
