//! Weights that many small products read, step after step of a recurrent layer: laid out once as those products read
//! them best, in panels. A product of few rows takes no longer than reading its weights does, and packs them in vain.

use crate::kir::{BufferId, BufferKind, ContractKind, Kernel, KernelNode, Origin, Program, View};
use std::collections::HashMap;
use tensorpack_kernels::MatMul;
use tensorpack_tensor::DType;

/// Products with more rows read their weights seldom enough.
const FEW_ROWS: usize = 64;
/// Products that share weights, at least, for panels to pay.
const MANY: usize = 6;
/// Smaller weights stay in the cache anyway.
const LARGE: usize = 1 << 16;

/// Puts what is read by many small products in panels before the first of them.
///
/// Preconditions (`small`): one f32 matrix, dense from wherever it begins, for the whole product.
/// Products share panels if they read the same view as a matrix of the same sizes, transposed or
/// not alike: elements seen under other sizes are another matrix.
pub(super) fn prepack_weights(program: &mut Program) {
    let mut readers: HashMap<Matrix, usize> = HashMap::new();
    for (product, rhs) in program.kernels.iter().filter_map(|node| small(&node.kernel)) {
        *readers.entry(matrix(product, rhs)).or_default() += 1;
    }
    readers.retain(|_, &mut count| count >= MANY);
    let mut panels: HashMap<Matrix, BufferId> = HashMap::new();
    for mut node in std::mem::take(&mut program.kernels) {
        let key = small(&node.kernel).map(|(product, rhs)| matrix(product, rhs));
        if let Some(key) = key.filter(|key| readers.contains_key(key))
            && let Kernel::Contract { kind: ContractKind::MatMul(product), rhs, .. } = &mut node.kernel
        {
            let buffer = *panels.entry(key).or_insert_with(|| in_panels(program, product, rhs, &node.origin));
            *rhs = View::dense(buffer, DType::F32, &program.buffer(buffer).sizes);
            *product = MatMul { rhs_transposed: false, rhs_panels: true, ..*product };
        }
        program.kernels.push(node);
    }
}

/// A view as a matrix: its rows and columns, and whether it is transposed.
type Matrix = (View, [usize; 2], bool);

fn matrix(product: &MatMul, rhs: &View) -> Matrix {
    (rhs.clone(), [product.k, product.n], product.rhs_transposed)
}

/// A product of few rows with large weights, and these.
fn small(kernel: &Kernel) -> Option<(&MatMul, &View)> {
    match kernel {
        Kernel::Contract { kind: ContractKind::MatMul(product), rhs, .. }
            if rhs.dtype == DType::F32
                && rhs.is_dense()
                && (product.batch == 1 || product.rhs_shared)
                && product.batch * product.m <= FEW_ROWS
                && product.n * product.k >= LARGE =>
        {
            Some((product, rhs))
        }
        _ => None,
    }
}

/// The right operand of a product in panels, zeros past the last column.
fn in_panels(program: &mut Program, product: &MatMul, rhs: &View, origin: &Origin) -> BufferId {
    let (n, k, wide) = (product.n, product.k, product.n.next_multiple_of(MatMul::PANEL));
    let turned = product.rhs_transposed;
    let matrix = |n: usize| if turned { [n, k] } else { [k, n] };
    let more = if turned { vec![wide - n, 0] } else { vec![0, wide - n] };
    let src = View { offset: rhs.offset, ..View::dense(rhs.buffer, rhs.dtype, &matrix(n)) };
    let padding = Kernel::Pad { src, low: vec![0; 2], high: more, interior: vec![0; 2] };
    let padded = made(program, padding, &matrix(wide), origin);
    let sizes = [wide / MatMul::PANEL, k, MatMul::PANEL];
    let [panel, width] = [MatMul::PANEL as isize, wide as isize];
    let strides = if turned { vec![panel * k as isize, 1, k as isize] } else { vec![panel, width, 1] };
    let copy = Kernel::Copy(View { sizes: sizes.to_vec(), strides, ..View::dense(padded, rhs.dtype, &[]) });
    made(program, copy, &sizes, origin)
}

/// What a new kernel makes.
fn made(program: &mut Program, kernel: Kernel, sizes: &[usize], origin: &Origin) -> BufferId {
    let buffer = program.add_buffer(DType::F32, sizes, BufferKind::Temp);
    program.kernels.push(KernelNode { kernel, outputs: vec![buffer], origin: origin.clone() });
    buffer
}
