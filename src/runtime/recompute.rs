//! Recomputation: gradients of a recompute block read results that are computed again right before
//! them, so that the originals need no memory between the forward and the backward pass.
//!
//! This is a rewrite of kernel IR after common subexpressions were merged, so that merging does not
//! undo it. The copies come right before the first kernel that reads them, which is where engines
//! that keep the order of kernels need them. Compilers that merge and reorder kernels themselves get
//! [`Program::recomputed`], from which they write barriers.

use crate::kir::{BufferId, BufferKind, Kernel, KernelNode, Program, Recomputed};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Where a kernel belongs: the recompute blocks of its node, outermost first, and the order of the
/// derivative that the node is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) blocks: Vec<u32>,
    pub(super) order: u32,
}

/// Blocks with this number and above are segments of the forward pass. Every gradient that reads a
/// result of a segment reads a copy.
pub(super) const FIRST_SEGMENT: u32 = 1 << 31;

/// Returns whether a kernel must not run again: all towers and processes run a collective together,
/// and a custom kernel may have effects.
pub(super) fn runs_once(node: &KernelNode) -> bool {
    node.kernel.is_collective() || matches!(node.kernel, Kernel::Custom { .. })
}

/// A copy of a kernel, for the derivatives of one order of a block: the blocks, the order, and the
/// index of the kernel.
///
/// Ordered by kernel first, because a copy reads only copies of earlier kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Copy {
    kernel: usize,
    order: u32,
    blocks: Vec<u32>,
}

/// Computes what gradients in recompute blocks read again. `places` has the place of each kernel.
pub(super) fn recompute(program: &mut Program, places: &[Place]) {
    if places.iter().all(|place| place.blocks.is_empty()) {
        return;
    }
    let kernels = std::mem::take(&mut program.kernels);
    let outputs = kernels.iter().enumerate().flat_map(|(i, node)| node.outputs.iter().map(move |&b| (b, i)));
    let writers: HashMap<BufferId, usize> = outputs.collect();
    let mut pass =
        Pass { program, kernels: &kernels, places, writers, made: HashMap::new(), groups: BTreeMap::new() };
    for (node, place) in kernels.iter().zip(places) {
        let mut node = node.clone();
        if place.order > 0 {
            pass.copy_operands(&node, place);
            pass.redirect(&mut node, &place.blocks, place.order);
        }
        pass.program.kernels.push(node);
    }
    let copied: HashSet<usize> = pass.made.keys().map(|copy| copy.kernel).collect();
    drop_unread(program, &copied.iter().flat_map(|&i| &kernels[i].outputs).copied().collect());
}

struct Pass<'a> {
    program: &'a mut Program,
    /// The kernels before the pass.
    kernels: &'a [KernelNode],
    places: &'a [Place],
    writers: HashMap<BufferId, usize>,
    /// The outputs of each copy that was made.
    made: HashMap<Copy, Vec<BufferId>>,
    /// Numbers for the blocks and orders that copies belong to.
    groups: BTreeMap<(Vec<u32>, u32), u32>,
}

impl Pass<'_> {
    /// Returns the copy that a reader in these blocks reads instead of a buffer: the one of the
    /// innermost block that contains both. `None` if it reads the original.
    fn copy_of(&self, buffer: BufferId, blocks: &[u32], order: u32) -> Option<Copy> {
        let kernel = *self.writers.get(&buffer)?;
        let place = &self.places[kernel];
        if place.order > 0 || runs_once(&self.kernels[kernel]) {
            return None;
        }
        if place.blocks.first().is_some_and(|&block| block >= FIRST_SEGMENT) {
            return Some(Copy { kernel, order, blocks: place.blocks.clone() });
        }
        let common = place.blocks.iter().zip(blocks).take_while(|(a, b)| a == b).count();
        if common == 0 {
            return None;
        }
        Some(Copy { kernel, order, blocks: blocks[..common].to_vec() })
    }

    /// Adds the missing copies that a kernel at `place` reads, in the order of the originals.
    fn copy_operands(&mut self, node: &KernelNode, place: &Place) {
        let mut missing: BTreeSet<Copy> = BTreeSet::new();
        let read = |node: &KernelNode, blocks: &[u32]| -> Vec<Copy> {
            let reads = node.kernel.reads();
            reads.iter().filter_map(|v| self.copy_of(v.buffer, blocks, place.order)).collect()
        };
        let mut open = read(node, &place.blocks);
        while let Some(copy) = open.pop() {
            if !self.made.contains_key(&copy) && !missing.contains(&copy) {
                open.extend(read(&self.kernels[copy.kernel], &copy.blocks));
                missing.insert(copy);
            }
        }
        // Copies start after what was computed so far.
        let after = self.program.kernels.last().and_then(|last| last.outputs.first()).copied();
        missing.into_iter().for_each(|copy| self.add(copy, after));
    }

    fn add(&mut self, copy: Copy, after: Option<BufferId>) {
        let mut node = self.kernels[copy.kernel].clone();
        self.redirect(&mut node, &copy.blocks, copy.order);
        let groups = self.groups.len() as u32;
        let group = *self.groups.entry((copy.blocks.clone(), copy.order)).or_insert(groups);
        for output in &mut node.outputs {
            let buffer = self.program.buffer(*output).clone();
            let again = self.program.add_buffer(buffer.dtype, &buffer.sizes, BufferKind::Temp);
            if self.program.materialized.contains(output) {
                self.program.materialized.push(again);
            }
            self.program.recomputed.insert(again, Recomputed { group, after });
            *output = again;
        }
        self.made.insert(copy, node.outputs.clone());
        self.program.kernels.push(node);
    }

    /// Lets a kernel in these blocks read copies, all of which were made.
    fn redirect(&self, node: &mut KernelNode, blocks: &[u32], order: u32) {
        for view in node.kernel.reads_mut() {
            let Some(copy) = self.copy_of(view.buffer, blocks, order) else { continue };
            let outputs = &self.kernels[copy.kernel].outputs;
            let at = outputs.iter().position(|&b| b == view.buffer).unwrap_or(0);
            view.buffer = self.made[&copy][at];
        }
    }
}

/// Removes kernels that write only `candidates`, if nothing reads these any more.
fn drop_unread(program: &mut Program, candidates: &HashSet<BufferId>) {
    let results = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let results = results.chain(program.updates.iter().map(|u| &u.value));
    let mut read: HashSet<BufferId> = results.map(|v| v.buffer).collect();
    let mut keep = vec![true; program.kernels.len()];
    for (i, node) in program.kernels.iter().enumerate().rev() {
        keep[i] = node.outputs.iter().any(|b| read.contains(b) || !candidates.contains(b));
        if keep[i] {
            read.extend(node.kernel.reads().iter().map(|v| v.buffer));
        }
    }
    let mut keep = keep.into_iter();
    program.kernels.retain(|_| keep.next().unwrap_or(true));
}
