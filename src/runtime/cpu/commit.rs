//! The end of a run: what happens to variables once everything is known to be finite.
//!
//! Kernels that do nothing but make next values of variables wait until the check has passed and then write in place.
//! Those that do the same to neighbours in a slab become one pass over it.

use super::variables::{Place, Variables};
use crate::kir::{self, BufferId, BufferKind, Kernel, KernelNode, MapBody, Origin, Program, View};
use std::collections::HashMap;

/// What waits for the check.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Passes over variables, in order.
    pub(super) passes: Vec<Pass>,
    /// Variables whose next value lies ready elsewhere and is copied at the very end: variable and value.
    pub(super) copies: Vec<(usize, View)>,
}

/// One map over a stretch of slabs.
#[derive(Debug)]
pub(super) struct Pass {
    /// The maps joined in it, neighbours in their slabs; alone if it could not be joined.
    pub(super) members: Vec<Member>,
    pub(super) origin: Origin,
}

/// One map that writes variables in place.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) body: MapBody,
    /// The variable each output becomes.
    pub(super) variables: Vec<usize>,
    /// The buffers the outputs were called.
    pub(super) outputs: Vec<BufferId>,
}

/// Takes what can wait out of the program.
pub(super) fn split(program: &mut Program, variables: &Variables) -> Commit {
    materialise_moved_variables(program);
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
    commit.passes = join(program, variables, members);
    let rest = program.updates.iter().filter(|u| !done.contains(&u.variable));
    commit.copies = rest.map(|u| (u.variable, u.value.clone())).collect();
    commit
}

/// A value that is another variable's start value, or not dense, is copied aside while it still is what it is.
fn materialise_moved_variables(program: &mut Program) {
    for i in 0..program.updates.len() {
        let value = program.updates[i].value.clone();
        let own_memory = program.is_temp(value.buffer)
            || matches!(program.buffer(value.buffer).kind, BufferKind::Constant(_));
        if value.is_dense() && own_memory {
            continue;
        }
        let buffer = program.add_buffer(value.dtype, &value.sizes, BufferKind::Temp);
        let origin =
            Origin { name: "assign".into(), site: tensorpack_tensor::Site { file: file!(), line: line!() } };
        program.kernels.push(KernelNode {
            kernel: Kernel::Copy(value.clone()),
            outputs: vec![buffer],
            origin,
        });
        program.updates[i].value = View::dense(buffer, value.dtype, &value.sizes);
    }
}

/// Kernels that can wait and write in place, with the variable each output becomes.
fn late_kernels(program: &Program) -> HashMap<usize, Vec<usize>> {
    let wanted = |b: BufferId| program.fetches.iter().chain(&program.costs).any(|v| v.buffer == b);
    // Which variable a buffer becomes, if it is all of its next value.
    let becomes = |b: BufferId| {
        let mut of = program
            .updates
            .iter()
            .filter(|u| u.value.buffer == b && u.value.len() == program.buffer(b).len());
        let first = of.next()?;
        of.next().is_none().then_some(first.variable)
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
        // Nobody may need the next value early; none that waits too, and comes later, the start value; nor this kernel
        // itself another element of what it overwrites, or what another tower overwrites at the same time.
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
    // Waiting moves a kernel behind all that do not wait: those read start values, which are still there. Among
    // themselves the order stays, and `needed` looked at all later ones.
    late
}

/// What must agree for maps to be one pass.
#[derive(PartialEq)]
struct Form {
    expr: String,
    operands: Vec<FormOperand>,
    output_slabs: Vec<usize>,
}

#[derive(PartialEq)]
enum FormOperand {
    Scalar(View),
    Slab(usize),
    Temp,
}

/// Whether a map over `sizes` reads one and the same element everywhere.
pub(super) fn is_scalar(view: &View, sizes: &[usize]) -> bool {
    kir::elements(sizes) > 1 && view.strides.iter().zip(&view.sizes).all(|(&s, &n)| s == 0 || n == 1)
}

fn form(program: &Program, variables: &Variables, member: &Member) -> Option<Form> {
    let body = &member.body;
    let operand = |v: &View| {
        if is_scalar(v, &body.sizes) {
            return Some(FormOperand::Scalar(View { sizes: vec![1], strides: vec![0], ..v.clone() }));
        }
        let whole = v.is_dense() && v.len() == program.buffer(v.buffer).len();
        match program.buffer(v.buffer).kind {
            BufferKind::Variable(x) if whole => Some(FormOperand::Slab(variables.place(x).slab)),
            BufferKind::Temp if whole => Some(FormOperand::Temp),
            _ => None,
        }
    };
    let no_index = !body.expr.steps.iter().any(|s| matches!(s, crate::kir::Step::Index { .. }));
    no_index.then_some(())?;
    Some(Form {
        expr: format!("{:?}", body.expr),
        operands: body.operands.iter().map(operand).collect::<Option<Vec<_>>>()?,
        output_slabs: member.variables.iter().map(|&v| variables.place(v).slab).collect(),
    })
}

/// Joins maps of one form over neighbours.
fn join(program: &Program, variables: &Variables, members: Vec<(Member, Origin)>) -> Vec<Pass> {
    // Joining changes the order. Where one member reads what another writes, all stay as they are.
    let reads = |m: &Member, v: usize| {
        let is_it = |w: &View| matches!(program.buffer(w.buffer).kind, BufferKind::Variable(x) if x == v);
        m.body.operands.iter().any(is_it)
    };
    let disturbs =
        |i: usize, j: usize| i != j && members[i].0.variables.iter().any(|&v| reads(&members[j].0, v));
    if (0..members.len()).any(|i| (0..members.len()).any(|j| disturbs(i, j))) {
        return members.into_iter().map(|m| pass(vec![m])).collect();
    }
    struct Group {
        form: Option<Form>,
        members: Vec<(Member, Origin)>,
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut temps: Vec<BufferId> = Vec::new();
    for (member, origin) in members {
        // A temporary can lie in one pass only.
        let own: Vec<BufferId> =
            member.body.operands.iter().map(|v| v.buffer).filter(|&b| program.is_temp(b)).collect();
        let scalar = |b: BufferId| program.buffer(b).len() == 1;
        let free = own.iter().all(|b| scalar(*b) || !temps.contains(b));
        let form = form(program, variables, &member).filter(|_| free);
        temps.extend(own);
        match groups.iter_mut().find(|g| form.is_some() && g.form == form) {
            Some(group) => group.members.push((member, origin)),
            None => groups.push(Group { form, members: vec![(member, origin)] }),
        }
    }
    let mut passes = Vec::new();
    for mut group in groups {
        let place = |m: &Member| variables.place(m.variables[0]).offset;
        group.members.sort_by_key(|(m, _)| place(m));
        let mut run: Vec<(Member, Origin)> = Vec::new();
        for next in group.members {
            if let Some((last, _)) = run.last()
                && !follows(program, variables, last, &next.0)
            {
                passes.push(pass(std::mem::take(&mut run)));
            }
            run.push(next);
        }
        passes.push(pass(run));
    }
    passes
}

fn pass(run: Vec<(Member, Origin)>) -> Pass {
    let origin = run[0].1.clone();
    Pass { members: run.into_iter().map(|(m, _)| m).collect(), origin }
}

/// Whether every variable `b` touches lies right behind the one `a` touches in the same position.
fn follows(program: &Program, variables: &Variables, a: &Member, b: &Member) -> bool {
    let read = |m: &Member| -> Vec<Place> {
        let operands = m.body.operands.iter().filter_map(|v| match program.buffer(v.buffer).kind {
            BufferKind::Variable(x) if v.len() == program.buffer(v.buffer).len() => Some(x),
            _ => None,
        });
        m.variables.iter().copied().chain(operands).map(|v| variables.place(v)).collect()
    };
    let bytes = program.buffer(a.outputs[0]).bytes();
    let (pa, pb) = (read(a), read(b));
    pa.len() == pb.len()
        && pa
            .iter()
            .zip(&pb)
            .all(|(x, y)| x.slab == y.slab && y.offset == x.offset + super::memory::padded(bytes))
}
