//! Fusion: fewer passes over memory.
//!
//! - A map that only maps and reductions read is computed inside them instead of being stored.
//! - A map with other readers is computed together with its first reader, which stores both.
//! - A map of a contraction's result becomes its epilogue, applied while the result is in cache.
//! - Reductions over the same space share one pass.

use crate::kir::{
    self, BufferId, Class, Epilogue, ExprBuilder, Kernel, KernelNode, MapBody, Program, ReduceKind, Reg,
    Step, Unary, View,
};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use tensorpack_tensor::DType;

/// With more steps or operands, a tile's registers outgrow the L1 cache.
const MAX_STEPS: usize = 64;
pub(super) const MAX_OPERANDS: usize = 14;

/// Computes maps inside their readers, or together with the first of them.
pub(super) fn inline_maps(program: &mut Program) {
    rewrite(program, |f| f.inline_maps());
}

/// Turns maps of contractions' results into epilogues.
pub(super) fn fuse_epilogues(program: &mut Program) {
    rewrite(program, |f| f.epilogues());
}

/// Lets reductions over the same iteration space share one pass over memory.
pub(super) fn share_reductions(program: &mut Program) {
    rewrite(program, |f| f.share_reductions());
}

fn rewrite(program: &mut Program, pass: impl FnOnce(&mut Fusion<'_>)) {
    let mut fusion = Fusion::new(program);
    pass(&mut fusion);
    program.kernels = fusion.nodes.into_iter().flatten().collect();
}

struct Fusion<'a> {
    program: &'a Program,
    nodes: Vec<Option<KernelNode>>,
    /// Buffers that must be stored: fetches and costs.
    wanted: HashSet<BufferId>,
    /// Buffers that hold a variable's next value.
    updating: HashSet<BufferId>,
    /// Buffers across which nothing is fused.
    kept: HashSet<BufferId>,
}

/// The nodes that read each buffer. A search of all nodes for every map would take quadratic time.
#[derive(PartialEq)]
struct Readers(HashMap<BufferId, Vec<usize>>);

impl Readers {
    fn new(nodes: &[Option<KernelNode>]) -> Readers {
        let mut readers = Readers(HashMap::new());
        nodes.iter().enumerate().for_each(|(i, node)| readers.add(i, node));
        readers
    }

    /// Returns the nodes that read a buffer, in order.
    fn of(&self, buffer: BufferId) -> &[usize] {
        self.0.get(&buffer).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, i: usize, node: &Option<KernelNode>) {
        for view in node.iter().flat_map(|n| n.kernel.reads()) {
            let list = self.0.entry(view.buffer).or_default();
            if let Err(at) = list.binary_search(&i) {
                list.insert(at, i);
            }
        }
    }

    fn remove(&mut self, i: usize, node: &Option<KernelNode>) {
        for view in node.iter().flat_map(|n| n.kernel.reads()) {
            let Entry::Occupied(mut list) = self.0.entry(view.buffer) else { continue };
            if let Ok(at) = list.get().binary_search(&i) {
                list.get_mut().remove(at);
            }
            if list.get().is_empty() {
                list.remove();
            }
        }
    }
}

impl<'a> Fusion<'a> {
    fn new(program: &'a mut Program) -> Fusion<'a> {
        let nodes = std::mem::take(&mut program.kernels).into_iter().map(Some).collect();
        let wanted = program.fetches.iter().chain(&program.costs).map(|v| v.buffer).collect();
        let updating = program.updates.iter().map(|u| u.value.buffer).collect();
        let kept = program.kept.iter().map(|v| v.buffer).collect();
        Fusion { program, nodes, wanted, updating, kept }
    }

    fn body(&self, i: usize) -> Option<&MapBody> {
        match &self.nodes[i].as_ref()?.kernel {
            Kernel::Map(body) | Kernel::Reduce { body, .. } => Some(body),
            _ => None,
        }
    }

    /// Computes maps inside their readers.
    ///
    /// Preconditions: storing the result does not round it (`exact`), and it is not `kept`; nothing
    /// else needs it, or its first reader stores it too; and `inlined` can trace each element of
    /// every view of it back to one element of the map.
    fn inline_maps(&mut self) {
        let mut readers = Readers::new(&self.nodes);
        let contractions =
            self.nodes.iter().flatten().filter(|n| matches!(n.kernel, Kernel::Contract { .. }));
        let contracted: HashSet<BufferId> = contractions.flat_map(|n| n.outputs.iter().copied()).collect();
        for i in 0..self.nodes.len() {
            let Some(KernelNode { kernel: Kernel::Map(producer), outputs, .. }) = &self.nodes[i] else {
                continue;
            };
            let (producer, outputs) = (producer.clone(), outputs.clone());
            // Storing in a narrower type rounds: such values must be stored.
            let exact = |b: &BufferId| {
                matches!(self.program.buffer(*b).dtype, DType::F32 | DType::F64 | DType::I64 | DType::Bool)
            };
            let mut users: Vec<usize> = outputs.iter().flat_map(|&b| readers.of(b)).copied().collect();
            users.sort_unstable();
            users.dedup();
            if users.is_empty() || !outputs.iter().all(exact) || outputs.iter().any(|b| self.kept.contains(b))
            {
                continue;
            }
            let stored = outputs.iter().any(|b| self.is_stored(*b));
            let merged: Option<Vec<MapBody>> = users
                .iter()
                .map(|&u| self.body(u).and_then(|body| inlined(body, &producer, &outputs)))
                .collect();
            // A contraction result that only this map reads will be fused as its epilogue, which
            // costs nothing.
            let epilogue_to_be = producer
                .operands
                .iter()
                .any(|v| contracted.contains(&v.buffer) && readers.of(v.buffer).len() == 1);
            match merged {
                Some(bodies)
                    if !stored
                        && (users.len() == 1
                            || !epilogue_to_be && self.worth_repeating(&producer, &users, &bodies)) =>
                {
                    for (&u, body) in users.iter().zip(bodies) {
                        self.change(u, &mut readers, |node| set_body(node, body));
                    }
                    self.change(i, &mut readers, |node| *node = None);
                }
                _ => {
                    if let Some(joined) = self.joined_with_first(&producer, &outputs, &users) {
                        self.change(users[0], &mut readers, |node| *node = Some(joined));
                        self.change(i, &mut readers, |node| *node = None);
                    }
                }
            }
        }
        debug_assert!(readers == Readers::new(&self.nodes), "the readers are not those of the nodes");
    }

    fn is_stored(&self, b: BufferId) -> bool {
        self.wanted.contains(&b) || self.updating.contains(&b)
    }

    fn reads(&self, i: usize, buffer: BufferId) -> bool {
        self.nodes[i].as_ref().is_some_and(|n| n.kernel.reads().iter().any(|v| v.buffer == buffer))
    }

    /// Changes a node, and `readers` with it.
    fn change(&mut self, i: usize, readers: &mut Readers, change: impl FnOnce(&mut Option<KernelNode>)) {
        readers.remove(i, &self.nodes[i]);
        change(&mut self.nodes[i]);
        readers.add(i, &self.nodes[i]);
    }

    /// Returns whether computing a map once for each of its readers moves less memory than storing
    /// it.
    fn worth_repeating(&self, producer: &MapBody, users: &[usize], merged: &[MapBody]) -> bool {
        let costly = |s: &Step| {
            matches!(
                s,
                Step::Unary(
                    Unary::Exp
                        | Unary::Expm1
                        | Unary::Log
                        | Unary::Log1p
                        | Unary::Tanh
                        | Unary::Sigmoid
                        | Unary::Erf
                        | Unary::Sin
                        | Unary::Cos,
                    _
                ) | Step::Binary(crate::kir::Binary::Pow, ..)
            )
        };
        if producer.expr.steps.iter().any(costly) || producer.expr.steps.len() > 12 {
            return false;
        }
        // Only what is read element by element counts: what repeats stays in cache.
        let distinct = |v: &View| {
            let dims = v.sizes.iter().zip(&v.strides).filter(|(_, s)| **s != 0);
            dims.fold(1usize, |n, (&size, _)| n.saturating_mul(size))
        };
        let full = |body: &MapBody| {
            let elements = kir::elements(&body.sizes);
            body.operands.iter().filter(|v| 2usize.saturating_mul(distinct(v)) > elements).count()
        };
        let repeated: usize = merged.iter().map(full).sum();
        let before: usize = users.iter().filter_map(|&u| self.body(u)).map(full).sum();
        repeated <= before + full(producer) + 1
    }

    /// Returns the first reader of a map joined with it: it stores the outputs of both that others
    /// need. Returns `None` if they cannot be joined.
    ///
    /// Preconditions: the reader is a map over the same sizes and reads the results whole and in
    /// order (sizes, strides and offset), so that element `i` of one is computed together with
    /// element `i` of the other.
    fn joined_with_first(
        &self,
        producer: &MapBody,
        made: &[BufferId],
        users: &[usize],
    ) -> Option<KernelNode> {
        let Some(KernelNode { kernel: Kernel::Map(reader), outputs, origin }) = &self.nodes[users[0]] else {
            return None;
        };
        let kept: Vec<usize> = (0..made.len())
            .filter(|&k| self.is_stored(made[k]) || users[1..].iter().any(|&u| self.reads(u, made[k])))
            .collect();
        let same_space = reader.sizes == producer.sizes
            && reader.operands.iter().filter(|v| made.contains(&v.buffer)).all(|v| v.is_whole(&producer.sizes))
            // Joining maps of one element saves nothing and would tie scalars of the step to large
            // passes.
            && kir::elements(&reader.sizes) > 1;
        if !same_space || outputs.len() + kept.len() > 6 {
            return None;
        }
        let mut body = inlined(reader, producer, made)?;
        let mut operands = std::mem::take(&mut body.operands);
        let mut b = ExprBuilder::default();
        let mut regs = b.inline(&body.expr, |b, i, class| b.operand(i, operands[i].dtype, class), |a| a);
        let indices: Vec<usize> =
            producer.operands.iter().map(|v| index_of(&mut operands, v.clone())).collect();
        let load =
            |b: &mut ExprBuilder, i: usize, class| b.operand(indices[i], producer.operands[i].dtype, class);
        let own = b.inline(&producer.expr, load, |a| a);
        regs.extend(kept.iter().map(|&k| own[k]));
        let joined = crate::kir::compact(&body.sizes, operands, b.finish(&regs));
        if joined.operands.len() > MAX_OPERANDS || joined.expr.steps.len() > MAX_STEPS {
            return None;
        }
        let outputs = outputs.iter().copied().chain(kept.iter().map(|&k| made[k])).collect();
        Some(KernelNode { kernel: Kernel::Map(joined), outputs, origin: origin.clone() })
    }

    /// Fuses maps of contraction results as epilogues.
    ///
    /// Preconditions: only the map reads the result, in any number of operands, each time whole and
    /// in order; it has the result's sizes, and its type or, for bf16 operands, theirs; and the
    /// last of these sizes is the number of columns of the contraction, because it is computed on
    /// blocks of rows and columns. Its other operands may have any strides.
    fn epilogues(&mut self) {
        let readers = Readers::new(&self.nodes);
        for i in 0..self.nodes.len() {
            let Some(KernelNode {
                kernel: Kernel::Contract { kind, lhs, epilogue: None, .. }, outputs, ..
            }) = &self.nodes[i]
            else {
                continue;
            };
            let (made, columns, operands) = (outputs[0], kind.out_columns(), lhs.dtype);
            let [user] = readers.of(made) else { continue };
            if self.is_stored(made) || self.kept.contains(&made) {
                continue;
            }
            let buffer = self.program.buffer(made);
            let Some(KernelNode { kernel: Kernel::Map(map), outputs, origin }) = &self.nodes[*user] else {
                continue;
            };
            let stored = self.program.buffer(outputs[0]).dtype;
            let fits = map.sizes == buffer.sizes
                && map.sizes.last() == Some(&columns)
                && outputs.len() == 1
                && (stored == buffer.dtype || stored == operands && operands.is_narrow_float())
                && map.operands.iter().filter(|v| v.buffer == made).all(|v| v.is_whole(&buffer.sizes));
            if !fits {
                continue;
            }
            let rest: Vec<View> = map.operands.iter().filter(|v| v.buffer != made).cloned().collect();
            let mut b = ExprBuilder::default();
            let index_of = |v: &View| rest.iter().position(|r| r == v).map_or(0, |p| p + 1);
            let load = |b: &mut ExprBuilder, i: usize, class| {
                b.operand(index_of(&map.operands[i]), map.operands[i].dtype, class)
            };
            let regs = b.inline(&map.expr, load, |a| a);
            let epilogue = Epilogue { expr: b.finish(&regs), operands: rest.clone() };
            let (outputs, origin) = (outputs.clone(), origin.clone());
            let Some(KernelNode { kernel: Kernel::Contract { kind, lhs, rhs, .. }, .. }) =
                self.nodes[i].take()
            else {
                continue;
            };
            let kernel = Kernel::Contract { kind, lhs, rhs, epilogue: Some(epilogue) };
            self.nodes[*user] = Some(KernelNode { kernel, outputs, origin });
        }
    }

    /// Joins reductions over the same iteration space, if one position in the order comes after
    /// everything they read and before everything that reads them.
    ///
    /// Preconditions: equal sizes, equal reduced dims, values of one class, and at least one view
    /// that both read, because otherwise joining saves nothing. Views may have any strides.
    fn share_reductions(&mut self) {
        for j in 0..self.nodes.len() {
            for i in (0..j).rev() {
                if let Some(at) = self.common_position(i, j) {
                    self.join_reductions(i, j, at);
                    if at == i {
                        break;
                    }
                }
            }
        }
    }

    fn common_position(&self, i: usize, j: usize) -> Option<usize> {
        let (first, second) = (self.nodes[i].as_ref()?, self.nodes[j].as_ref()?);
        let (
            Kernel::Reduce { body: a, reduced: ra, kinds: ka },
            Kernel::Reduce { body: b, reduced: rb, kinds: kb },
        ) = (&first.kernel, &second.kernel)
        else {
            return None;
        };
        // The indices of extremes come from a different loop.
        let plain = |kinds: &[ReduceKind]| {
            !kinds.iter().any(|k| matches!(k, ReduceKind::ArgMax | ReduceKind::ArgMin))
        };
        let shares_operand = b.operands.iter().any(|v| a.operands.contains(v));
        let same = a.sizes == b.sizes && ra == rb && plain(ka) && plain(kb) && shares_operand;
        let class = |body: &MapBody| body.expr.class(body.expr.outputs[0]);
        let fits = same
            && class(a) == class(b)
            && a.operands.len() + b.operands.len() <= MAX_OPERANDS
            && a.expr.steps.len() + b.expr.steps.len() <= MAX_STEPS;
        if !fits {
            return None;
        }
        let between = i + 1..j;
        let reads_first = |n: usize| first.outputs.iter().any(|&o| self.reads(n, o));
        let writes_for_second = |n: usize| {
            let made = self.nodes[n].as_ref().map_or(&[][..], |m| &m.outputs);
            made.iter().any(|o| b.operands.iter().any(|v| v.buffer == *o))
        };
        if b.operands.iter().any(|v| first.outputs.contains(&v.buffer)) {
            return None;
        }
        if !between.clone().any(writes_for_second) {
            return Some(i);
        }
        if !between.clone().any(reads_first) { Some(j) } else { None }
    }

    fn join_reductions(&mut self, i: usize, j: usize, at: usize) {
        let (Some(first), Some(second)) = (self.nodes[i].take(), self.nodes[j].take()) else { return };
        let (Kernel::Reduce { body: a, reduced, kinds }, Kernel::Reduce { body: b, kinds: more, .. }) =
            (first.kernel, second.kernel)
        else {
            return;
        };
        let mut operands = a.operands.clone();
        let indices: Vec<usize> = b.operands.iter().map(|v| index_of(&mut operands, v.clone())).collect();
        let mut e = ExprBuilder::default();
        let mut regs = e.inline(&a.expr, |e, k, class| e.operand(k, operands[k].dtype, class), |x| x);
        regs.extend(e.inline(
            &b.expr,
            |e, k, class| e.operand(indices[k], operands[indices[k]].dtype, class),
            |x| x,
        ));
        let body = MapBody { sizes: a.sizes, operands, expr: e.finish(&regs) };
        let kernel = Kernel::Reduce { body, reduced, kinds: [kinds, more].concat() };
        let outputs = [first.outputs, second.outputs].concat();
        self.nodes[at] = Some(KernelNode { kernel, outputs, origin: second.origin });
    }
}

/// Sets what a map or a reduction computes.
fn set_body(node: &mut Option<KernelNode>, new: MapBody) {
    if let Some(KernelNode { kernel: Kernel::Map(body) | Kernel::Reduce { body, .. }, .. }) = node {
        *body = new;
    }
}

/// Returns the index of an operand in a list, after adding it if it is missing.
fn index_of(operands: &mut Vec<View>, view: View) -> usize {
    operands.iter().position(|o| *o == view).unwrap_or_else(|| {
        operands.push(view);
        operands.len() - 1
    })
}

/// Returns `reader` with the map that computes `made` inlined where it was read, if every view of
/// it allows that.
///
/// Preconditions: both have the same number of elements, because otherwise values would be computed
/// again for every repetition; each view passes `seen_through`; and if the map depends on indices,
/// the reader's view runs over those dims one to one.
fn inlined(reader: &MapBody, producer: &MapBody, made: &[BufferId]) -> Option<MapBody> {
    // For each operand of the reader: its new index; or the output of the producer that it is, with
    // the indices of the producer's operands and the reader's dims for its dims.
    enum Source {
        Kept(usize),
        Inlined { output: usize, indices: Vec<usize>, axes: Vec<Option<usize>> },
    }
    let count = kir::elements;
    let mut operands: Vec<View> = Vec::new();
    let mut sources = Vec::new();
    for view in &reader.operands {
        let Some(output) = made.iter().position(|b| *b == view.buffer) else {
            sources.push(Source::Kept(index_of(&mut operands, view.clone())));
            continue;
        };
        // A value that the reader repeats would be computed again for every repetition.
        if count(&reader.sizes) != count(&producer.sizes) {
            return None;
        }
        let Seen { operands: seen, axes } = seen_through(view, producer)?;
        let lost = |s: &Step| matches!(s, Step::Index { axis, .. } if axes[*axis as usize].is_none());
        if producer.expr.steps.iter().any(lost) {
            return None;
        }
        let indices = seen.into_iter().map(|v| index_of(&mut operands, v)).collect();
        sources.push(Source::Inlined { output, indices, axes });
    }
    let mut b = ExprBuilder::default();
    let outputs = b.inline(
        &reader.expr,
        |b, i, class: Class| match &sources[i] {
            Source::Kept(at) => b.operand(*at, operands[*at].dtype, class),
            Source::Inlined { output, indices, axes } => {
                let made: Vec<Reg> = b.inline(
                    &producer.expr,
                    |b, k, class| b.operand(indices[k], operands[indices[k]].dtype, class),
                    |a| axes[a].unwrap_or(0),
                );
                // Converted as if it were read from its buffer, which has one of the types that
                // `inline_maps` accepts.
                let stored = b.stored(reader.operands[i].dtype, made[*output]);
                b.cast(class, stored)
            }
        },
        |a| a,
    );
    let expr = b.finish(&outputs);
    let body = crate::kir::compact(&reader.sizes, operands, expr);
    (body.operands.len() <= MAX_OPERANDS && body.expr.steps.len() <= MAX_STEPS).then_some(body)
}

struct Seen {
    /// The producer's operands over the reader's iteration space.
    operands: Vec<View>,
    /// For each dim of the producer, the reader's dim that runs over it one to one.
    axes: Vec<Option<usize>>,
}

/// Returns the producer's operands as a reader of its result through `view` would read them.
///
/// Precondition: every dim of the view runs forwards along one dim of the producer, no two along
/// the same, and stays inside it from where the offset puts it. Then the index of an element splits
/// into one index for each dim of the producer. Views that merge or split dims, or run backwards,
/// do not split and are read from memory; dims of size 1 and repeated dims may have any stride.
fn seen_through(view: &View, producer: &MapBody) -> Option<Seen> {
    let dense = View::dense(view.buffer, view.dtype, &producer.sizes).strides;
    let rank = producer.sizes.len();
    if producer.sizes.contains(&0) {
        return None;
    }
    let start: Vec<usize> = (0..rank).map(|d| view.offset / dense[d] as usize % producer.sizes[d]).collect();
    let mut axes = vec![None; rank];
    // For each dim of the reader: the dim of the producer it runs over, and its step.
    let mut runs: Vec<Option<(usize, isize)>> = Vec::new();
    let mut taken = vec![false; rank];
    for (i, (&n, &stride)) in view.sizes.iter().zip(&view.strides).enumerate() {
        if n == 1 || stride == 0 {
            runs.push(None);
            continue;
        }
        let fits = |d: &usize| {
            let step = stride / dense[*d];
            let last = start[*d] as isize + (n as isize - 1) * step;
            !taken[*d] && stride % dense[*d] == 0 && step > 0 && last < producer.sizes[*d] as isize
        };
        let d = (0..rank)
            .find(|d| dense[*d] == stride && producer.sizes[*d] > 1 && fits(d))
            .or_else(|| (0..rank).find(fits))?;
        taken[d] = true;
        let step = stride / dense[d];
        if step == 1 && start[d] == 0 && n == producer.sizes[d] {
            axes[d] = Some(i);
        }
        runs.push(Some((d, step)));
    }
    let operands = producer.operands.iter().map(|o| {
        let ahead: isize = (0..rank).map(|d| start[d] as isize * o.strides[d]).sum();
        View {
            sizes: view.sizes.clone(),
            strides: runs.iter().map(|r| r.map_or(0, |(d, step)| o.strides[d] * step)).collect(),
            offset: (o.offset as isize + ahead) as usize,
            ..o.clone()
        }
    });
    Some(Seen { operands: operands.collect(), axes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_slice_is_traced_to_the_operands() {
        let b = BufferId(0);
        let x = View::dense(BufferId(1), DType::F32, &[4, 6]);
        let bias = View::dense(BufferId(2), DType::F32, &[6]).broadcast_to(&[4, 6]);
        let mut e = ExprBuilder::default();
        let r = e.operand(0, DType::F32, Class::F32);
        let producer = MapBody { sizes: vec![4, 6], operands: vec![x, bias], expr: e.finish(&[r]) };
        let view = View::dense(b, DType::F32, &[4, 6]).slice(&[1, 2], &[1, 2], &[3, 2]).permute(&[1, 0]);
        let seen = seen_through(&view, &producer).unwrap();
        assert_eq!((seen.operands[0].offset, seen.operands[0].strides.as_slice()), (8, &[2, 6][..]));
        assert_eq!((seen.operands[1].offset, seen.operands[1].strides.as_slice()), (2, &[2, 0][..]));
        assert_eq!(seen.axes, [None, None]);
    }
}
