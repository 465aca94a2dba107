//! Computes floats of 16 bits in f32. Kernels that sum have loops for f32 and f64 only, so their operands are
//! converted before them and their results after. The conversions are maps, which fusion can merge
//! with others.

use crate::kir::{
    BufferId, BufferKind, Class, ExprBuilder, GatherKind, Kernel, KernelNode, MapBody, Origin, Program, View,
};
use tensorpack_tensor::DType;

/// Adds conversions around the kernels that sum bf16 or f16. Operands may have any strides; converted ones
/// are dense.
pub(super) fn upcast_narrow(program: &mut Program) {
    for mut node in std::mem::take(&mut program.kernels) {
        if !sums(&node.kernel) {
            program.kernels.push(node);
            continue;
        }
        for view in node.kernel.reads_mut().into_iter().filter(|v| v.dtype.is_narrow_float()) {
            *view = converted(program, view, DType::F32, &node.origin);
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
