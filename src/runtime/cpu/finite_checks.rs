//! The checks of a plan: which results have their extremes recorded, and what bounds the updates of
//! variables.

use super::commit::FusedUpdate;
use super::interval::Bound;
use super::memory::padded;
use super::overflow::{self, Output, Proof, Source};
use super::pipeline::Compilation;
use crate::kir::{BufferId, BufferKind, Program, View};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use tensorpack_kernels::{Isa, extremes};
use tensorpack_tensor::{DType, HostTensor};

/// Elements of an output that are checked when they are written.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) elements: Range<usize>,
    /// The slot for their extremes: that of a result or, in a commit, the index of a variable.
    pub(super) slot: usize,
    /// Whether they must be finite for variables to change.
    pub(super) finite: bool,
}

/// A variable that is assigned a copy of an earlier result.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) variable: usize,
    pub(super) dtype: DType,
    /// The source of its bound.
    pub(super) source: Source,
}

/// The checks of one program.
pub(super) struct FiniteChecks<'a> {
    compilation: &'a Compilation,
    /// The slot of every result whose extremes are recorded.
    slots: HashMap<BufferId, usize>,
    /// Results that must be finite for variables to change.
    finite: HashSet<BufferId>,
}

impl<'a> FiniteChecks<'a> {
    /// Assigns a slot to every result whose extremes are recorded: those that must be finite, and
    /// floats that fused updates and copies read.
    ///
    /// [`Program::finite`] and [`Update::finite`](crate::kir::Update::finite) say what must be
    /// finite, for all engines. A next value that is copied is checked where it is computed.
    pub(super) fn new(compilation: &'a Compilation) -> FiniteChecks<'a> {
        let Compilation { program, commit, .. } = compilation;
        let copied = commit.copies.iter().filter(|c| c.finite).map(|c| c.value.buffer);
        let finite: HashSet<BufferId> = program.finite.iter().copied().chain(copied).collect();
        let mut slots = HashMap::new();
        let consumed = commit.reads().map(|v| v.buffer).chain(program.finite.iter().copied());
        for b in consumed.filter(|&b| program.buffer(b).dtype.is_float() && program.is_temp(b)) {
            let next = slots.len();
            slots.entry(b).or_insert(next);
        }
        FiniteChecks { compilation, slots, finite }
    }

    fn program(&self) -> &Program {
        &self.compilation.program
    }

    /// Returns the number of slots.
    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the checks of a result: all elements, if it has a slot.
    pub(super) fn of_result(&self, b: BufferId) -> Vec<Checked> {
        let (elements, finite) = (0..self.program().buffer(b).len(), self.finite.contains(&b));
        self.slots.get(&b).map(|&slot| Checked { elements, slot, finite }).into_iter().collect()
    }

    /// Returns the checks of an output of a fused update: the elements of its members, without the
    /// padding between them.
    pub(super) fn of_fused_update(&self, update: &FusedUpdate, output: usize) -> Vec<Checked> {
        let mut checked = Vec::new();
        let mut from = 0;
        for m in &update.members {
            let (buffer, slot) = (self.program().buffer(m.outputs[output]), m.variables[output]);
            let elements = from..from + buffer.len();
            checked.push(Checked { elements, slot, finite: self.must_be_finite(slot) });
            from += padded(buffer.bytes()) / buffer.dtype.size();
        }
        checked
    }

    /// Returns the proof obligations of all fused updates: what each writes is finite.
    pub(super) fn proofs(&self) -> Vec<Proof> {
        self.compilation.commit.fused.iter().map(|update| self.proof(update)).collect()
    }

    /// Returns the variables that are assigned copies.
    pub(super) fn copied(&self) -> Vec<Copied> {
        let copies = self.compilation.commit.copies.iter();
        let copied = copies.map(|c| Copied {
            variable: c.variable,
            dtype: c.value.dtype,
            source: self.source(&c.value),
        });
        copied.collect()
    }

    /// Returns whether a variable that must be finite is assigned a constant that is not.
    pub(super) fn assigns_infinity(&self) -> bool {
        self.compilation.commit.copies.iter().any(|c| match &self.program().buffer(c.value.buffer).kind {
            BufferKind::Constant(t) => t.dtype().is_float() && c.finite && constant_bound(t).is_none(),
            _ => false,
        })
    }

    fn must_be_finite(&self, variable: usize) -> bool {
        self.program().updates.iter().any(|u| u.variable == variable && u.finite)
    }

    /// Returns what bounds the elements of a view.
    fn source(&self, v: &View) -> Source {
        let buffer = self.program().buffer(v.buffer);
        let single = buffer.len() == 1;
        match &buffer.kind {
            BufferKind::Variable(index) => Source::Variable(*index),
            BufferKind::Feed(i) => Source::Feed(*i),
            BufferKind::Constant(t) => Source::Always(constant_bound(t)),
            BufferKind::Snapshot(_) => Source::Always(None),
            BufferKind::Temp => match self.slots.get(&v.buffer) {
                Some(&slot) => Source::Result { slot, single },
                None => Source::Always(overflow::any_of(v.dtype)),
            },
        }
    }

    fn proof(&self, update: &FusedUpdate) -> Proof {
        let first = &update.members[0];
        let operand = |k: usize| {
            let sources = update.members.iter().map(|m| self.source(&m.body.operands[k]));
            (first.body.operands[k].dtype, sources.collect())
        };
        let output = |k: usize| {
            let finite = update.members.iter().any(|m| self.must_be_finite(m.variables[k]));
            Output { dtype: self.program().buffer(first.outputs[k]).dtype, finite }
        };
        Proof {
            expr: first.body.expr.clone(),
            sizes: first.body.sizes.clone(),
            operands: (0..first.body.operands.len()).map(operand).collect(),
            outputs: (0..first.outputs.len()).map(output).collect(),
        }
    }
}

/// Returns bounds on the elements of a constant.
fn constant_bound(t: &HostTensor) -> Bound {
    if !t.dtype().is_float() {
        return overflow::any_of(t.dtype());
    }
    // SAFETY: the bytes are the tensor's elements, `t.len()` of type `t.dtype()`, and the CPU has
    // the detected instructions.
    let of = unsafe { extremes(Isa::detect(), t.dtype(), t.as_bytes().as_ptr(), t.len()) };
    overflow::bound(of, t.dtype(), t.len() == 1)
}
