//! Fetched values are dense: the caller gets row-major tensors.

use crate::kir::{BufferKind, Kernel, KernelNode, Origin, Program, View};

/// Copies every fetched view that is not dense.
pub(super) fn dense_fetches(program: &mut Program) {
    for i in 0..program.fetches.len() {
        let view = program.fetches[i].clone();
        if !view.is_dense() {
            let buffer = program.add_buffer(view.dtype, &view.sizes, BufferKind::Temp);
            let origin = Origin {
                name: "fetch".into(),
                site: tensorpack_tensor::Site { file: file!(), line: line!() },
            };
            program.kernels.push(KernelNode {
                kernel: Kernel::Copy(view.clone()),
                outputs: vec![buffer],
                origin,
            });
            program.fetches[i] = View::dense(buffer, view.dtype, &view.sizes);
        }
    }
}
