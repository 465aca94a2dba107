//! Makes fetched values dense: the caller gets row-major tensors.

use crate::kir::{BufferKind, Kernel, KernelNode, Program, View};

/// Copies every fetched view that is not dense. The copy has the fetched node as its origin.
pub(super) fn dense_fetches(program: &mut Program) {
    for i in 0..program.fetches.len() {
        let view = program.fetches[i].clone();
        if view.is_dense() {
            continue;
        }
        let buffer = program.add_buffer(view.dtype, &view.sizes, BufferKind::Temp);
        program.fetches[i] = View::dense(buffer, view.dtype, &view.sizes);
        let origin = program.fetch_origins[i].clone();
        program.kernels.push(KernelNode { kernel: Kernel::Copy(view), outputs: vec![buffer], origin });
    }
}
