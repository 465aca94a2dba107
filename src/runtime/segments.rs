//! Recomputation that is planned for a memory limit: the forward pass is cut into segments, and some
//! of them are computed again.
//!
//! Results that leave a segment are kept. The other results of a segment that gradients read are
//! computed again, from what enters the segment and leaves earlier ones.

use super::recompute::{FIRST_SEGMENT, Place, runs_once};
use crate::kir::{self, BufferId, ContractKind, Kernel, KernelNode, Program};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The segments that are computed again: the first `chosen` of `total`, those that save most bytes
/// per multiply-add first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segments {
    pub(super) total: usize,
    pub(super) chosen: usize,
}

/// A part of the forward pass.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Its kernels whose results do not leave it.
    internal: Vec<usize>,
    /// The bytes that need not be kept for gradients if it is computed again.
    pub(super) saved: usize,
    /// The multiply-adds of computing it again.
    pub(super) multiply_adds: usize,
    /// The names of its first and last nodes.
    pub(super) names: [String; 2],
}

/// Assigns the kernels of the chosen segments to blocks. Returns these segments.
pub(super) fn assign(program: &Program, places: &mut [Place], choice: Segments) -> Vec<Segment> {
    let mut segments = cut(program, places, choice.total);
    segments.truncate(choice.chosen);
    for (number, segment) in segments.iter().enumerate() {
        for &i in &segment.internal {
            places[i].blocks = vec![FIRST_SEGMENT + number as u32];
        }
    }
    segments
}

/// Returns the number of kernels of the forward pass, which is the largest useful number of
/// segments.
pub(super) fn forward_len(program: &Program, places: &[Place]) -> usize {
    forward(program, places).len()
}

/// Cuts the forward pass into `total` segments that save about as many bytes each. Returns those that
/// save any, sorted by the bytes they save per multiply-add.
fn cut(program: &Program, places: &[Place], total: usize) -> Vec<Segment> {
    let forward = forward(program, places);
    let writers = writers(program);
    let stored = stored_for_gradients(program, places);
    let bytes = |i: usize| -> usize {
        let outputs = program.kernels[i].outputs.iter().filter(|b| stored.contains(b));
        outputs.fold(0, |n, &b| n.saturating_add(program.buffer(b).bytes()))
    };
    let all = forward.iter().fold(0usize, |n, &i| n.saturating_add(bytes(i)));
    let mut segment_of: HashMap<usize, usize> = HashMap::new();
    let mut before = 0usize;
    for &i in &forward {
        let at = (before as u128 * total as u128 / all.max(1) as u128) as usize;
        segment_of.insert(i, at.min(total.saturating_sub(1)));
        before = before.saturating_add(bytes(i));
    }
    let leaving = leaving(program, places, &writers, &segment_of);
    let mut segments = Vec::new();
    for number in 0..total {
        let mine: Vec<usize> = forward.iter().copied().filter(|i| segment_of[i] == number).collect();
        let is_internal = |i: &usize| {
            !program.kernels[*i].outputs.iter().any(|b| leaving.contains(b))
                && !runs_once(&program.kernels[*i])
        };
        let internal: Vec<usize> = mine.iter().copied().filter(is_internal).collect();
        let inside: HashSet<usize> = internal.iter().copied().collect();
        // What gradients read, and what that is computed from.
        let mut open: Vec<usize> = internal.iter().copied().filter(|&i| bytes(i) > 0).collect();
        let mut again: BTreeSet<usize> = BTreeSet::new();
        while let Some(i) = open.pop() {
            if again.insert(i) {
                let reads = program.kernels[i].kernel.reads().into_iter();
                open.extend(reads.filter_map(|v| writers.get(&v.buffer)).filter(|w| inside.contains(w)));
            }
        }
        let saved = internal.iter().fold(0usize, |n, &i| n.saturating_add(bytes(i)));
        let (Some(first), Some(last)) = (mine.first(), mine.last()) else { continue };
        let name = |i: usize| program.kernels[i].origin.name.clone();
        let multiply_adds =
            again.iter().fold(0usize, |n, &i| n.saturating_add(multiply_adds(program, &program.kernels[i])));
        if saved > 0 {
            segments.push(Segment { internal, saved, multiply_adds, names: [name(*first), name(*last)] });
        }
    }
    // The larger quotient first; products in 128 bits are exact.
    segments.sort_by(|a, b| {
        let [x, y] = [(a, b), (b, a)].map(|(p, q)| p.saved as u128 * q.multiply_adds.max(1) as u128);
        y.cmp(&x)
    });
    segments
}

/// Returns the kernels of the forward pass outside of recompute blocks: those that gradients depend on
/// and that depend on no gradient.
fn forward(program: &Program, places: &[Place]) -> Vec<usize> {
    let writers = writers(program);
    let read_by = |i: usize| {
        let reads = program.kernels[i].kernel.reads().into_iter();
        reads.filter_map(|v| writers.get(&v.buffer)).copied().collect::<Vec<usize>>()
    };
    let mut after_gradients = vec![false; places.len()];
    let mut needed = vec![false; places.len()];
    for i in 0..places.len() {
        after_gradients[i] = places[i].order > 0 || read_by(i).iter().any(|&w| after_gradients[w]);
    }
    for i in (0..places.len()).rev() {
        if needed[i] || places[i].order > 0 {
            read_by(i).into_iter().for_each(|w| needed[w] = true);
        }
    }
    let is_forward = |&i: &usize| needed[i] && !after_gradients[i] && places[i].blocks.is_empty();
    (0..places.len()).filter(is_forward).collect()
}

/// Returns the results of the forward pass that gradients read.
fn stored_for_gradients(program: &Program, places: &[Place]) -> HashSet<BufferId> {
    let gradients = program.kernels.iter().zip(places).filter(|(_, place)| place.order > 0);
    gradients.flat_map(|(node, _)| node.kernel.reads()).map(|v| v.buffer).collect()
}

/// Returns the results that are kept: those that kernels outside of their segment read, other than
/// gradients, and those that the program is run for.
fn leaving(
    program: &Program,
    places: &[Place],
    writers: &HashMap<BufferId, usize>,
    segment_of: &HashMap<usize, usize>,
) -> HashSet<BufferId> {
    let results = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let results = results.chain(program.updates.iter().map(|u| &u.value));
    let mut leaving: HashSet<BufferId> = results.map(|v| v.buffer).collect();
    for (i, node) in program.kernels.iter().enumerate().filter(|(i, _)| places[*i].order == 0) {
        for view in node.kernel.reads() {
            let Some(writer) = writers.get(&view.buffer) else { continue };
            if segment_of.get(&i) != segment_of.get(writer) {
                leaving.insert(view.buffer);
            }
        }
    }
    leaving
}

fn writers(program: &Program) -> HashMap<BufferId, usize> {
    let kernels = program.kernels.iter().enumerate();
    kernels.flat_map(|(i, node)| node.outputs.iter().map(move |&b| (b, i))).collect()
}

/// Returns the number of multiply-adds of a kernel, or of steps for each element.
fn multiply_adds(program: &Program, node: &KernelNode) -> usize {
    let outputs = || node.outputs.iter().fold(0usize, |n, &b| n.saturating_add(program.buffer(b).len()));
    match &node.kernel {
        Kernel::Map(body) | Kernel::Reduce { body, .. } => {
            kir::elements(&body.sizes).saturating_mul(body.expr.steps.len().max(1))
        }
        Kernel::Contract { kind, .. } => match kind {
            ContractKind::MatMul(product) => product.out_len().saturating_mul(product.k),
            ContractKind::Conv2d(c)
            | ContractKind::Conv2dInputGrad(c)
            | ContractKind::Conv2dFilterGrad(c) => {
                (c.out_len() / c.out_channels.max(1)).saturating_mul(c.filter_len())
            }
            ContractKind::Depthwise(c)
            | ContractKind::DepthwiseInputGrad(c)
            | ContractKind::DepthwiseFilterGrad(c) => {
                (c.out_len() / c.in_channels.max(1)).saturating_mul(c.depthwise_filter_len())
            }
        },
        Kernel::Attention { inputs, attention, .. } => {
            // Scores and their product with the values.
            let width = inputs.first().and_then(|q| q.sizes.last()).copied().unwrap_or(1);
            kir::elements(&attention.score_sizes()).saturating_mul(2).saturating_mul(width)
        }
        _ => outputs(),
    }
}

/// Returns an estimate of the memory of a program: the largest number of bytes of results that are
/// alive at once, if each is stored.
pub(super) fn peak_bytes(program: &Program) -> usize {
    let mut last: HashMap<BufferId, usize> = HashMap::new();
    for (i, node) in program.kernels.iter().enumerate() {
        last.extend(node.kernel.reads().iter().map(|v| (v.buffer, i)));
        for &b in &node.outputs {
            last.entry(b).or_insert(i);
        }
    }
    let results = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let results = results.chain(program.updates.iter().map(|u| &u.value));
    last.extend(results.map(|v| (v.buffer, usize::MAX)));
    let mut dying: HashMap<usize, usize> = HashMap::new();
    let (mut alive, mut peak) = (0usize, 0usize);
    for (i, node) in program.kernels.iter().enumerate() {
        for &b in &node.outputs {
            let bytes = program.buffer(b).bytes();
            alive = alive.saturating_add(bytes);
            let end = dying.entry(last[&b]).or_default();
            *end = end.saturating_add(bytes);
        }
        peak = peak.max(alive);
        alive = alive.saturating_sub(dying.get(&i).copied().unwrap_or(0));
    }
    peak
}
