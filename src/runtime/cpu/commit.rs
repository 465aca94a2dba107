//! The commit: updates of variables at the end of a run, once everything is known to be finite.
//!
//! Kernels that only compute next values of variables run after the check and write in place. Those
//! with equal expressions over adjacent variables of a slab are fused into one map over it.

use super::variables::{Place, Variables};
use crate::kir::{
    self, BufferId, BufferKind, Expr, Kernel, KernelNode, MapBody, Origin, Program, Step, Update, View,
};
use std::collections::{HashMap, HashSet};
use tensorpack_tensor::DType;

/// The work that runs after the check.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Maps that write variables in place, in order.
    pub(super) fused: Vec<FusedUpdate>,
    /// Updates whose value is computed before the check and copied after all fused updates.
    pub(super) copies: Vec<Update>,
}

/// One map over a contiguous part of slabs: the updates of adjacent variables.
#[derive(Debug)]
pub(super) struct FusedUpdate {
    /// The fused maps, whose variables are adjacent in their slabs; a single one if it could not be
    /// fused.
    pub(super) members: Vec<Member>,
    /// For each operand, whether all members read the same single element of it; empty if there is
    /// one member.
    pub(super) scalar: Vec<bool>,
    pub(super) origin: Origin,
}

/// One map that writes variables in place.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) body: MapBody,
    /// The variable that each output is written to.
    pub(super) variables: Vec<usize>,
    /// The buffers that the outputs had in the program.
    pub(super) outputs: Vec<BufferId>,
}

impl Commit {
    pub(super) fn is_empty(&self) -> bool {
        self.fused.is_empty() && self.copies.is_empty()
    }

    /// Returns every view that the commit reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = &View> {
        let operands = self.fused.iter().flat_map(|u| &u.members).flat_map(|m| &m.body.operands);
        operands.chain(self.copies.iter().map(|copy| &copy.value))
    }
}

/// Moves the kernels that can run after the check from the program to the commit.
pub(super) fn split(program: &mut Program, variables: &Variables) -> Commit {
    materialize_next_values(program);
    let late = late_kernels(program);
    let mut commit = Commit::default();
    let mut done: Vec<usize> = Vec::new();
    let mut members = Vec::new();
    let kernels = std::mem::take(&mut program.kernels);
    for (i, node) in kernels.into_iter().enumerate() {
        match (late.get(&i), node) {
            (Some(vars), KernelNode { kernel: Kernel::Map(body), outputs, origin }) => {
                done.extend(vars);
                members.push((Member { body, variables: vars.clone(), outputs }, origin));
            }
            (_, node) => program.kernels.push(node),
        }
    }
    commit.fused = fuse(program, variables, members);
    let rest = program.updates.iter().filter(|u| !done.contains(&u.variable));
    commit.copies = rest.cloned().collect();
    commit
}

/// Copies next values that are not dense, or that are a view of a variable or feed, before any
/// variable changes.
fn materialize_next_values(program: &mut Program) {
    for i in 0..program.updates.len() {
        let value = program.updates[i].value.clone();
        let own_memory = program.is_temp(value.buffer)
            || matches!(program.buffer(value.buffer).kind, BufferKind::Constant(_));
        if value.is_dense() && own_memory {
            continue;
        }
        let buffer = program.add_buffer(value.dtype, &value.sizes, BufferKind::Temp);
        let origin = program.updates[i].origin.clone();
        program.kernels.push(KernelNode {
            kernel: Kernel::Copy(value.clone()),
            outputs: vec![buffer],
            origin,
        });
        program.updates[i].value = View::dense(buffer, value.dtype, &value.sizes);
    }
}

/// Returns the kernels that can run after the check and write in place, with the variables they
/// write.
fn late_kernels(program: &Program) -> HashMap<usize, Vec<usize>> {
    let wanted = |b: BufferId| program.fetches.iter().chain(&program.costs).any(|v| v.buffer == b);
    // Returns the variable whose next value a buffer is. Precondition: the update's value is the
    // whole buffer (it is dense by now), and no other update reads any part of it, because a kernel
    // that writes the variable in place leaves the buffer unwritten.
    let becomes = |b: BufferId| {
        let mut of = program.updates.iter().filter(|u| u.value.buffer == b);
        let first = of.next()?;
        let whole = first.value.len() == program.buffer(b).len();
        (whole && of.next().is_none()).then_some(first.variable)
    };
    let mut late: HashMap<usize, Vec<usize>> = HashMap::new();
    for (i, node) in program.kernels.iter().enumerate().rev() {
        let Kernel::Map(body) = &node.kernel else { continue };
        let Some(vars) = node.outputs.iter().map(|&o| becomes(o)).collect::<Option<Vec<usize>>>() else {
            continue;
        };
        let reads = |n: &KernelNode, pick: &dyn Fn(&View) -> bool| n.kernel.reads().into_iter().any(pick);
        let is_output = |v: &View| node.outputs.contains(&v.buffer);
        let is_target =
            |v: &View| matches!(program.buffer(v.buffer).kind, BufferKind::Variable(x) if vars.contains(&x));
        let is_foreign = |v: &View| matches!(program.buffer(v.buffer).kind, BufferKind::Variable(x) if program.updated_elsewhere.contains(&x));
        // A kernel is not late if anything needs the next value before the check, if a later late
        // kernel reads the start value, or if the kernel itself reads other elements of a variable
        // that it or another tower overwrites.
        let needed = node.outputs.iter().any(|&o| wanted(o))
            || program.kernels.iter().any(|n| reads(n, &is_output))
            || late.keys().any(|&n| reads(&program.kernels[n], &is_target))
            || body.operands.iter().any(|v| is_target(v) && !v.is_whole(&body.sizes))
            || body.operands.iter().any(is_foreign)
            || program.updates.iter().any(|u| is_target(&u.value));
        if !needed {
            late.insert(i, vars);
        }
    }
    // Late kernels move after all others, which read start values that are still intact. Late
    // kernels keep their order, and `needed` has checked all later ones.
    late
}

/// Maps with equal keys can be fused.
#[derive(PartialEq, Eq)]
struct FusionKey {
    expr: Expr,
    operands: Vec<OperandKey>,
    output_slabs: Vec<usize>,
}

/// How a fused update reads an operand.
#[derive(PartialEq, Eq)]
enum OperandKey {
    /// One element, the same for all members.
    Scalar(View),
    /// A whole variable of this slab, element by element.
    Slab(usize),
    /// A whole temporary of this type, element by element, packed like the slab.
    Temp(DType),
}

/// Returns the key of a member; `None` if it cannot be fused with others.
///
/// A fused update runs over the slab from the first element of its first member to the last element
/// of its last member, padding included. Preconditions on the member:
/// - It has elements, and no result depends on an element's index.
/// - All operands and outputs that are accessed element by element have elements of one size: then
///   the padding has the same number of elements everywhere, and positions agree.
/// - Each operand is one element (`Scalar`), or a whole dense buffer that is a variable or a
///   temporary. View sizes need not be the buffer's: elements are visited in memory order.
/// - A temporary that is read element by element is read once, by one member: it has one position
///   in one pack.
///
/// For a member of one element every operand could be either. Operands that other members read too
/// (a learning rate, a gradient that several variables share) are scalars; those that it alone
/// reads are read element by element, as in larger members.
fn fusion_key(
    program: &Program,
    variables: &Variables,
    member: &Member,
    is_shared: impl Fn(BufferId) -> bool,
    packed: &HashSet<BufferId>,
) -> Option<FusionKey> {
    let body = &member.body;
    let len = kir::elements(&body.sizes);
    let has_index = body.expr.steps.iter().any(|s| matches!(s, Step::Index { .. }));
    let size = program.buffer(member.outputs[0]).dtype.size();
    let same_output_size = member.outputs.iter().all(|&b| program.buffer(b).dtype.size() == size);
    if len == 0 || has_index || !same_output_size {
        return None;
    }
    let mut own: Vec<BufferId> = Vec::new();
    let mut operand = |v: &View| {
        let scalar = || OperandKey::Scalar(View { sizes: vec![1], strides: vec![0], ..v.clone() });
        let whole = v.is_dense() && v.len() == program.buffer(v.buffer).len() && v.dtype.size() == size;
        let by_element = match program.buffer(v.buffer).kind {
            BufferKind::Variable(x) if whole => Some(OperandKey::Slab(variables.place(x).slab)),
            BufferKind::Temp if whole => Some(OperandKey::Temp(v.dtype)),
            _ => None,
        };
        if v.is_scalar() && (len > 1 || by_element.is_none() || is_shared(v.buffer)) {
            return Some(scalar());
        }
        if matches!(by_element, Some(OperandKey::Temp(_))) {
            if packed.contains(&v.buffer) || own.contains(&v.buffer) {
                return None;
            }
            own.push(v.buffer);
        }
        by_element
    };
    Some(FusionKey {
        expr: body.expr.clone(),
        operands: body.operands.iter().map(&mut operand).collect::<Option<Vec<_>>>()?,
        output_slabs: member.variables.iter().map(|&v| variables.place(v).slab).collect(),
    })
}

/// Fuses maps with equal keys over adjacent variables.
fn fuse(program: &Program, variables: &Variables, members: Vec<(Member, Origin)>) -> Vec<FusedUpdate> {
    // Fusion changes the order, so nothing is fused if one member reads what another writes.
    let reads = |m: &Member, v: usize| {
        let is_it = |w: &View| matches!(program.buffer(w.buffer).kind, BufferKind::Variable(x) if x == v);
        m.body.operands.iter().any(is_it)
    };
    let disturbs =
        |i: usize, j: usize| i != j && members[i].0.variables.iter().any(|&v| reads(&members[j].0, v));
    if (0..members.len()).any(|i| (0..members.len()).any(|j| disturbs(i, j))) {
        return members.into_iter().map(|m| fused_update(vec![m], Vec::new())).collect();
    }
    struct Group {
        key: Option<FusionKey>,
        members: Vec<(Member, Origin)>,
    }
    let mut readers: HashMap<BufferId, usize> = HashMap::new();
    for (member, _) in &members {
        let buffers: HashSet<BufferId> = member.body.operands.iter().map(|v| v.buffer).collect();
        buffers.into_iter().for_each(|b| *readers.entry(b).or_default() += 1);
    }
    let is_shared = |b: BufferId| readers.get(&b).is_some_and(|&n| n > 1);
    let mut groups: Vec<Group> = Vec::new();
    let mut packed: HashSet<BufferId> = HashSet::new();
    for (member, origin) in members {
        let key = fusion_key(program, variables, &member, is_shared, &packed);
        for (operand, view) in key.iter().flat_map(|f| &f.operands).zip(&member.body.operands) {
            if let OperandKey::Temp(_) = operand {
                packed.insert(view.buffer);
            }
        }
        match groups.iter_mut().find(|g| key.is_some() && g.key == key) {
            Some(group) => group.members.push((member, origin)),
            None => groups.push(Group { key, members: vec![(member, origin)] }),
        }
    }
    let mut fused = Vec::new();
    for mut group in groups {
        let scalar: Vec<bool> =
            group.key.iter().flat_map(|f| &f.operands).map(OperandKey::is_scalar).collect();
        let place = |m: &Member| variables.place(m.variables[0]).offset;
        group.members.sort_by_key(|(m, _)| place(m));
        let mut run: Vec<(Member, Origin)> = Vec::new();
        for next in group.members {
            if let Some((last, _)) = run.last()
                && !follows(program, variables, &scalar, last, &next.0)
            {
                fused.push(fused_update(std::mem::take(&mut run), scalar.clone()));
            }
            run.push(next);
        }
        fused.push(fused_update(run, scalar));
    }
    fused
}

impl OperandKey {
    fn is_scalar(&self) -> bool {
        matches!(self, OperandKey::Scalar(_))
    }
}

fn fused_update(run: Vec<(Member, Origin)>, scalar: Vec<bool>) -> FusedUpdate {
    let origin = run[0].1.clone();
    FusedUpdate { members: run.into_iter().map(|(m, _)| m).collect(), scalar, origin }
}

/// Returns whether every variable that `b` accesses element by element directly follows the one
/// that `a` accesses in the same position.
fn follows(program: &Program, variables: &Variables, scalar: &[bool], a: &Member, b: &Member) -> bool {
    let places = |m: &Member| -> Vec<Place> {
        let by_element = m.body.operands.iter().zip(scalar).filter(|(_, scalar)| !**scalar);
        let read = by_element.filter_map(|(v, _)| match program.buffer(v.buffer).kind {
            BufferKind::Variable(x) => Some(x),
            _ => None,
        });
        m.variables.iter().copied().chain(read).map(|v| variables.place(v)).collect()
    };
    let bytes = program.buffer(a.outputs[0]).bytes();
    let next = |x: &Place| Place { offset: x.offset + super::memory::padded(bytes), ..*x };
    places(a).iter().map(next).eq(places(b))
}
