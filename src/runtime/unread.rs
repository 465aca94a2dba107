//! Drops kernels whose results nothing reads: an operation computes all its outputs, and a program may
//! need only some of them.

use super::recompute::Place;
use crate::kir::{self, BufferId, Kernel, Program};
use std::collections::HashSet;
use tensorpack_tensor::Result;

/// Drops what nothing reads. Kernels that other towers wait for, that may have effects or that check
/// indices are kept. Returns an error if a program that would lose kernels is not valid: a wrong
/// lowering is reported even if nothing reads what it computes.
pub(super) fn drop_unread(program: &mut Program, places: &mut Vec<Place>) -> Result<()> {
    let results = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let results = results.chain(program.updates.iter().map(|u| &u.value));
    let mut read: HashSet<BufferId> = results.map(|v| v.buffer).collect();
    let mut keep = vec![true; program.kernels.len()];
    for (node, keep) in program.kernels.iter().zip(&mut keep).rev() {
        let optional = node.kernel.is_pure() && !matches!(node.kernel, Kernel::Gather { .. });
        *keep = !optional || node.outputs.iter().any(|b| read.contains(b));
        if *keep {
            read.extend(node.kernel.reads().iter().map(|v| v.buffer));
        }
    }
    if keep.iter().all(|keep| *keep) {
        return Ok(());
    }
    kir::validate(program)?;
    let mut kept = keep.iter();
    program.kernels.retain(|_| *kept.next().unwrap_or(&true));
    let mut kept = keep.iter();
    places.retain(|_| *kept.next().unwrap_or(&true));
    program.materialized.retain(|b| read.contains(b));
    Ok(())
}
