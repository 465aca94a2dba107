//! Computes floats of 16 bits in f32. Most kernels that sum have loops for f32 and f64 only, so
//! their operands are converted before them and their results after. The conversions are maps,
//! which fusion can merge with others. Where the CPU multiplies bf16, contractions read it as it
//! is, and only their sums are converted.

use super::kernel_selection::multiplies_bf16;
use crate::kir::{
    BufferId, BufferKind, Class, ExprBuilder, GatherKind, Kernel, KernelNode, MapBody, Origin, Program, View,
};
use tensorpack_tensor::DType;

/// Adds conversions around the kernels that sum bf16 or f16. Operands may have any strides;
/// converted ones are dense, as are those of contractions that `has_bf16` instructions compute.
pub(super) fn upcast_narrow(program: &mut Program, has_bf16: bool) {
    for mut node in std::mem::take(&mut program.kernels) {
        if !sums(&node.kernel) {
            program.kernels.push(node);
            continue;
        }
        let in_bf16 = has_bf16
            && matches!(&node.kernel, Kernel::Contract { kind, lhs, .. }
                if lhs.dtype == DType::Bf16 && multiplies_bf16(kind));
        for view in node.kernel.reads_mut().into_iter().filter(|v| v.dtype.is_narrow_float()) {
            *view = match in_bf16 {
                true => dense(program, view, &node.origin),
                false => converted(program, view, DType::F32, &node.origin),
            };
        }
        let mut after = Vec::new();
        for output in &mut node.outputs {
            let made = program.buffer(*output).clone();
            if made.dtype.is_narrow_float() {
                let wide = program.add_buffer(DType::F32, &made.sizes, BufferKind::Temp);
                let from = View::dense(wide, DType::F32, &made.sizes);
                after.push(conversion(&from, std::mem::replace(output, wide), &node.origin));
            }
        }
        program.kernels.push(node);
        program.kernels.extend(after);
    }
}

fn sums(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Gather { kind, .. } => *kind == GatherKind::ScatterAdd,
        Kernel::Contract { .. } | Kernel::Pool { .. } | Kernel::Cumsum { .. } | Kernel::Attention { .. } => {
            true
        }
        _ => false,
    }
}

/// Returns a view itself if it is dense, or a dense copy of it.
fn dense(program: &mut Program, view: &View, origin: &Origin) -> View {
    if view.is_dense() {
        return view.clone();
    }
    let buffer = program.add_buffer(view.dtype, &view.sizes, BufferKind::Temp);
    let (kernel, outputs, origin) = (Kernel::Copy(view.clone()), vec![buffer], origin.clone());
    program.kernels.push(KernelNode { kernel, outputs, origin });
    View::dense(buffer, view.dtype, &view.sizes)
}

/// Converts a view to another type and returns the dense result.
fn converted(program: &mut Program, view: &View, dtype: DType, origin: &Origin) -> View {
    let buffer = program.add_buffer(dtype, &view.sizes, BufferKind::Temp);
    program.kernels.push(conversion(view, buffer, origin));
    View::dense(buffer, dtype, &view.sizes)
}

/// Returns a map that converts a view to the type of a buffer.
fn conversion(from: &View, to: BufferId, origin: &Origin) -> KernelNode {
    let mut b = ExprBuilder::default();
    let x = b.operand(0, from.dtype, Class::F32);
    let body = MapBody { sizes: from.sizes.clone(), operands: vec![from.clone()], expr: b.finish(&[x]) };
    KernelNode { kernel: Kernel::Map(body), outputs: vec![to], origin: origin.clone() }
}
