//! Constant folding: kernels that read constants only run once, when the program is compiled.

use super::pipeline::PassCx;
use crate::kir::{BufferKind, Kernel, KernelNode, Program, Step, View};
use tensorpack_tensor::Result;

/// Elements of a result that is stored even if it only repeats what it is made from.
const SMALL: usize = 4096;

/// Runs kernels that read only constants, and turns their results into constants. Large ones that
/// [repeat](repeats) smaller ones stay kernels: most are computed inside their readers, and a constant
/// as large as an activation would take memory for as long as the program exists.
///
/// Precondition: the kernels depend on nothing else
/// ([`Kernel::is_pure`](crate::kir::Kernel::is_pure)). Then all their outputs are dense constants,
/// and views of them stay valid.
pub(super) fn fold_constants(program: &mut Program, cx: &mut PassCx<'_>) -> Result<()> {
    let mut constant: Vec<bool> =
        program.buffers.iter().map(|b| matches!(b.kind, BufferKind::Constant(_))).collect();
    let mut early = Program { buffers: program.buffers.clone(), ..Program::default() };
    let mut rest = Vec::new();
    for node in std::mem::take(&mut program.kernels) {
        let reads = node.kernel.reads();
        let reads_constants = reads.iter().all(|v| constant[v.buffer.0 as usize]);
        if node.kernel.is_pure() && reads_constants && !repeats(&node, program) {
            node.outputs.iter().for_each(|b| constant[b.0 as usize] = true);
            early.kernels.push(node);
        } else {
            rest.push(node);
        }
    }
    program.kernels = rest;
    let folded: Vec<_> = early.kernels.iter().flat_map(|n| n.outputs.clone()).collect();
    if folded.is_empty() {
        return Ok(());
    }
    early.fetches =
        folded.iter().map(|&b| View::dense(b, early.buffer(b).dtype, &early.buffer(b).sizes)).collect();
    let values = (cx.evaluate)(early, cx.variables)?;
    for (b, value) in folded.into_iter().zip(values) {
        program.buffers[b.0 as usize].kind = BufferKind::Constant(value);
    }
    Ok(())
}

/// Returns whether the result of a kernel is large, and repeats a smaller one or a number.
fn repeats(node: &KernelNode, program: &Program) -> bool {
    let reads = node.kernel.reads();
    let made_from: usize = reads.iter().map(|v| program.buffer(v.buffer).len()).sum();
    let made: usize = node.outputs.iter().map(|&b| program.buffer(b).len()).sum();
    let copies = match &node.kernel {
        Kernel::Map(body) => !body.expr.steps.iter().any(|step| matches!(step, Step::Index { .. })),
        Kernel::Copy(_) => true,
        _ => false,
    };
    copies && made > SMALL.max(made_from)
}
