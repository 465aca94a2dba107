//! Constant folding: kernels that read constants only run once, when the program is compiled.

use super::pipeline::PassCx;
use crate::kir::{BufferKind, Program, View};
use tensorpack_tensor::Result;

/// Runs kernels that read only constants, and turns their results into constants.
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
        if node.kernel.is_pure() && reads.iter().all(|v| constant[v.buffer.0 as usize]) {
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
