//! A program in kernel IR: buffers, kernels, and the results they are run for.

use super::view::elements;
use super::{Kernel, View};
use std::collections::HashMap;
use std::fmt::Write;
use tensorpack_tensor::{DType, HostTensor, Site};

/// The index of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// The source of a buffer's elements.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Written by a kernel of the program.
    Temp,
    /// Fed by the caller; the index of the feed.
    Feed(usize),
    /// A variable's value at the start of the run; the index of the variable in the graph.
    Variable(usize),
    /// A variable's value in the tower's snapshot, for towers that update variables asynchronously.
    Snapshot(usize),
    /// The same in every run.
    Constant(HostTensor),
}

/// The node that a kernel was lowered from, for errors and dumps.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The node's name.
    pub name: String,
    /// The user's line.
    pub site: Site,
}

/// A dense tensor of a program.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The element type.
    pub dtype: DType,
    /// The sizes.
    pub sizes: Vec<usize>,
    /// The source of the elements.
    pub kind: BufferKind,
}

impl Buffer {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        elements(&self.sizes)
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.len().saturating_mul(self.dtype.size())
    }
}

/// A kernel with the buffers it writes.
#[derive(Clone, Debug)]
pub struct KernelNode {
    /// The kernel.
    pub kernel: Kernel,
    /// The buffers that it writes, one for each output.
    pub outputs: Vec<BufferId>,
    /// The node that it was lowered from.
    pub origin: Origin,
}

/// A kernel that computes results again, so that the first ones need no memory in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// The number of the part of the program that is computed again. Compilers must not merge its
    /// kernels with equal ones of another group or of none.
    pub group: u32,
    /// A result that is computed before it, if there is one.
    pub after: Option<BufferId>,
}

/// What a run that fails its check does to a variable: `factor * value + summand` replaces `value`.
/// All other variables keep their values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnOverflow {
    /// The factor.
    pub factor: f64,
    /// The summand.
    pub summand: f64,
    /// If the result is less than this, no variable changes, and the run is an error.
    pub least: f64,
}

/// A variable's next value.
#[derive(Clone, Debug)]
pub struct Update {
    /// The index of the variable in the graph.
    pub variable: usize,
    /// Its next value.
    pub value: View,
    /// Whether the next value must be finite: it must, unless the variable's initial value is not.
    pub finite: bool,
    /// What a run that fails its check does to the variable, if anything.
    pub on_overflow: Option<OnOverflow>,
    /// The assignment.
    pub origin: Origin,
}

/// Kernels in execution order, with the results they are run for.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// The kernels, each after those that write what it reads.
    pub kernels: Vec<KernelNode>,
    /// Values returned to the caller.
    pub fetches: Vec<View>,
    /// The node of each fetch.
    pub fetch_origins: Vec<Origin>,
    /// Next values of variables, assigned after all kernels ran and the check passed.
    pub updates: Vec<Update>,
    /// Costs, which must be finite.
    pub costs: Vec<View>,
    /// Results that must be finite before any variable changes: costs, and what updates are made
    /// from. Next values must be finite as well, see [`Update::finite`].
    pub finite: Vec<BufferId>,
    /// Variables that another tower's program updates at the end of the same run.
    pub updated_elsewhere: Vec<usize>,
    /// Results across which nothing is fused: gradients of variables.
    pub kept: Vec<View>,
    /// Results that are computed once and stored: all kernels that read one see the same bits. A
    /// compiler that fuses a producer into each of its readers may round differently in each; see
    /// [`LowerCx::materialize`].
    ///
    /// [`LowerCx::materialize`]: super::LowerCx::materialize
    pub materialized: Vec<BufferId>,
    /// The outputs of kernels that compute results again.
    pub recomputed: HashMap<BufferId, Recomputed>,
    /// Indices of feeds that may hold infinities.
    pub infinite: Vec<usize>,
}

impl Program {
    /// Adds a buffer.
    pub fn add_buffer(&mut self, dtype: DType, sizes: &[usize], kind: BufferKind) -> BufferId {
        self.buffers.push(Buffer { dtype, sizes: sizes.to_vec(), kind });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Returns a buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Returns whether a kernel of this program writes the buffer.
    pub fn is_temp(&self, id: BufferId) -> bool {
        matches!(self.buffer(id).kind, BufferKind::Temp)
    }

    /// Returns whether the program reads the variable with this index.
    pub fn reads(&self, variable: usize) -> bool {
        let is_it = |kind: &BufferKind| matches!(kind, BufferKind::Variable(v) | BufferKind::Snapshot(v) if *v == variable);
        self.buffers.iter().any(|b| is_it(&b.kind))
    }

    /// Returns the value of a constant with a single element, if `view` is one and f64 represents
    /// it exactly.
    pub fn scalar_constant(&self, view: &View) -> Option<f64> {
        let exact = |v: &f64| view.dtype != DType::I64 || v.abs() < (1u64 << 53) as f64;
        match &self.buffers.get(view.buffer.0 as usize)?.kind {
            BufferKind::Constant(t) => t.to_scalar().ok().filter(exact),
            _ => None,
        }
    }

    /// Returns the program as text, one line for each kernel.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for node in &self.kernels {
            let _ = writeln!(text, "{}", self.line(node));
        }
        for u in &self.updates {
            let _ = writeln!(text, "update variable {} = {}", u.variable, self.show(&u.value));
        }
        text
    }

    fn line(&self, node: &KernelNode) -> String {
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .map(|&b| format!("%{} {}{:?}", b.0, self.buffer(b).dtype, self.buffer(b).sizes))
            .collect();
        let reads: Vec<String> = node.kernel.reads().iter().map(|v| self.show(v)).collect();
        let detail = match &node.kernel {
            Kernel::Map(body) => format!(" {} steps", body.expr.steps.len()),
            Kernel::Reduce { kinds, reduced, .. } => {
                let axes: Vec<usize> = (0..reduced.len()).filter(|&i| reduced[i]).collect();
                format!(" {kinds:?} over {axes:?}")
            }
            Kernel::Contract { epilogue: Some(e), .. } => format!(" then {} steps", e.expr.steps.len()),
            _ => String::new(),
        };
        format!(
            "{} = {}{detail} ({}) // {}",
            outputs.join(", "),
            node.kernel.name(),
            reads.join(", "),
            node.origin.name
        )
    }

    fn show(&self, view: &View) -> String {
        let name = match &self.buffer(view.buffer).kind {
            BufferKind::Temp => format!("%{}", view.buffer.0),
            BufferKind::Feed(i) => format!("feed{i}"),
            BufferKind::Variable(i) => format!("var{i}"),
            BufferKind::Snapshot(i) => format!("snap{i}"),
            BufferKind::Constant(_) => format!("const{}", view.buffer.0),
        };
        let whole = view.is_dense() && view.len() == self.buffer(view.buffer).len();
        if whole { name } else { format!("{name}:{:?}", view.strides) }
    }
}
