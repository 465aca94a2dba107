//! Emits the steps of a plan: the kernels in order, then the fused updates and copies that change
//! variables.

use super::commit::FusedUpdate;
use super::compiled_kernel::CompiledKernel;
use super::finite_checks::FiniteChecks;
use super::memory::padded;
use super::pipeline::Compilation;
use super::placement::{self, Loc, Placement};
use super::plan::{SharedAt, Step};
use super::variables::Variables;
use crate::kir::{self, BufferId, Kernel, KernelNode, MapBody, Program, Update, View};
use tensorpack_tensor::DType;

/// Emits steps over buffers that are placed.
pub(super) struct Emitter<'a> {
    pub(super) compilation: &'a Compilation,
    pub(super) variables: &'a Variables,
    pub(super) placement: &'a Placement,
    pub(super) checks: &'a FiniteChecks<'a>,
}

impl Emitter<'_> {
    fn program(&self) -> &Program {
        &self.compilation.program
    }

    /// Emits all steps. Kernels come first, one step each; then fused updates; then copies.
    pub(super) fn steps(&self, kernels: Vec<CompiledKernel>) -> Vec<Step> {
        let commit = &self.compilation.commit;
        let nodes = self.program().kernels.iter().zip(&self.placement.shared);
        let compute = nodes.zip(kernels).map(|((node, shared), kernel)| self.kernel(node, kernel, *shared));
        let fused = commit.fused.iter().map(|update| self.fused_update(update));
        compute.chain(fused).chain(commit.copies.iter().map(|copy| self.copy(copy))).collect()
    }

    fn kernel(&self, node: &KernelNode, kernel: CompiledKernel, shared: Option<usize>) -> Step {
        let stored = |b: BufferId| (self.program().buffer(b).dtype, self.compilation.stored_len(b));
        let read: f64 = node.kernel.reads().iter().map(|v| bytes_read(v)).sum();
        let written: f64 = node.outputs.iter().map(|&b| self.compilation.stored_bytes(b) as f64).sum();
        Step {
            kernel,
            reads: self.reads(node).iter().map(|v| self.placement.view(v)).collect(),
            writes: node.outputs.iter().map(|&b| self.placement.buffer(b)).collect(),
            outputs: node.outputs.iter().map(|&b| stored(b)).collect(),
            checked: node.outputs.iter().map(|&b| self.checks.of_result(b)).collect(),
            shared: shared.map_or(SharedAt::Nowhere, SharedAt::Arena),
            origin: node.origin.clone().into(),
            bytes: read + written,
        }
    }

    /// Returns the operands of a step: the kernel's views and, for a contraction, its own result
    /// before the epilogue's operands.
    fn reads(&self, node: &KernelNode) -> Vec<View> {
        let mut reads: Vec<View> = node.kernel.reads().into_iter().cloned().collect();
        if let Kernel::Contract { .. } = node.kernel {
            let own = node.outputs[0];
            let out = self.program().buffer(own);
            reads.insert(2, View::dense(own, out.dtype, &out.sizes));
        }
        reads
    }

    fn fused_update(&self, update: &FusedUpdate) -> Step {
        let first = &update.members[0];
        let body = match update.members.len() {
            1 => first.body.clone(),
            _ => self.fused_body(update),
        };
        let n = kir::elements(&body.sizes);
        let dtypes: Vec<DType> = first.outputs.iter().map(|&b| self.program().buffer(b).dtype).collect();
        let read: f64 = body.operands.iter().map(bytes_read).sum();
        let written: f64 = dtypes.iter().map(|d| (d.size() * n) as f64).sum();
        Step {
            reads: first.body.operands.iter().map(|v| self.placement.view(v)).collect(),
            writes: first.variables.iter().map(|&v| self.variable(v)).collect(),
            outputs: dtypes.iter().map(|&d| (d, n)).collect(),
            checked: (0..dtypes.len()).map(|output| self.checks.of_fused_update(update, output)).collect(),
            shared: SharedAt::Nowhere,
            origin: update.origin.clone().into(),
            bytes: read + written,
            kernel: CompiledKernel::map(&body, dtypes),
        }
    }

    /// Returns the first member's map, over the elements of all members and the padding between
    /// them.
    fn fused_body(&self, update: &FusedUpdate) -> MapBody {
        let buffer = |b: BufferId| self.program().buffer(b);
        let (first, last) = (&update.members[0], &update.members[update.members.len() - 1]);
        let all_but_last = &update.members[..update.members.len() - 1];
        let before: usize = all_but_last.iter().map(|m| padded(buffer(m.outputs[0]).bytes())).sum();
        let n = before / buffer(first.outputs[0]).dtype.size() + buffer(last.outputs[0]).len();
        let operands = first.body.operands.iter().zip(&update.scalar).map(|(v, &scalar)| View {
            sizes: vec![n],
            strides: vec![isize::from(!scalar)],
            ..v.clone()
        });
        MapBody { sizes: vec![n], operands: operands.collect(), expr: first.body.expr.clone() }
    }

    fn copy(&self, copy: &Update) -> Step {
        let value = &copy.value;
        Step {
            kernel: CompiledKernel::copy(value),
            reads: vec![self.placement.view(value)],
            writes: vec![self.variable(copy.variable)],
            outputs: vec![(value.dtype, value.len())],
            checked: Vec::new(),
            shared: SharedAt::Nowhere,
            origin: copy.origin.clone().into(),
            bytes: 2.0 * (value.len() * value.dtype.size()) as f64,
        }
    }

    fn variable(&self, index: usize) -> Loc {
        placement::variable(self.variables, index)
    }
}

/// Returns the bytes that a kernel reads through a view. Elements that are repeated count once.
fn bytes_read(v: &View) -> f64 {
    let dims = v.sizes.iter().zip(&v.strides).filter(|(_, s)| **s != 0);
    dims.map(|(&n, _)| n as f64).product::<f64>() * v.dtype.size() as f64
}
