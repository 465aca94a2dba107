//! Weight prepacking: weights that many small products read, step after step of a recurrent layer,
//! are copied into panels once. A product of few rows takes no longer than reading its weights, so
//! packing them each time does not pay.

use crate::kir::{BufferId, BufferKind, ContractKind, Kernel, KernelNode, MatMul, Origin, Program, View};
use std::collections::{HashMap, HashSet};
use tensorpack_tensor::DType;

/// Products with more rows pack for themselves.
const FEW_ROWS: usize = 64;
/// Minimum number of products that share weights for panels to pay.
const MANY: usize = 6;
/// Smaller weights stay in cache.
const LARGE: usize = 1 << 16;

/// Copies weights that many small products read before the first of them, and returns the copies:
/// buffers to be stored in panels.
///
/// Preconditions (`small`): one f32 or bf16 matrix, dense from its offset on, for the whole
/// product; bf16 is packed in pairs of rows, so their number is even. Products share a copy if they
/// read the same view as a matrix of the same sizes and transposition: the same elements under
/// other sizes are another matrix.
pub(super) fn prepack_weights(program: &mut Program) -> HashSet<BufferId> {
    let mut readers: HashMap<Matrix, usize> = HashMap::new();
    for (product, rhs) in program.kernels.iter().filter_map(|node| small(&node.kernel)) {
        *readers.entry(matrix(product, rhs)).or_default() += 1;
    }
    readers.retain(|_, &mut count| count >= MANY);
    let mut copies: HashMap<Matrix, BufferId> = HashMap::new();
    for mut node in std::mem::take(&mut program.kernels) {
        let key = small(&node.kernel).map(|(product, rhs)| matrix(product, rhs));
        if let Some(key) = key.filter(|key| readers.contains_key(key))
            && let Kernel::Contract { kind: ContractKind::MatMul(product), rhs, .. } = &mut node.kernel
        {
            let buffer = *copies.entry(key).or_insert_with(|| copy(program, product, rhs, &node.origin));
            *rhs = View::dense(buffer, rhs.dtype, &[product.k, product.n]);
            product.rhs_transposed = false;
        }
        program.kernels.push(node);
    }
    copies.into_values().collect()
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
            if (rhs.dtype == DType::F32 || rhs.dtype == DType::Bf16 && product.k.is_multiple_of(2))
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

/// Adds a copy of the right operand of a product as a matrix `[k, n]`.
fn copy(program: &mut Program, product: &MatMul, rhs: &View, origin: &Origin) -> BufferId {
    let sizes = [product.k, product.n];
    let stored = if product.rhs_transposed { [product.n, product.k] } else { sizes };
    let matrix = View { offset: rhs.offset, ..View::dense(rhs.buffer, rhs.dtype, &stored) };
    let matrix = if product.rhs_transposed { matrix.permute(&[1, 0]) } else { matrix };
    let buffer = program.add_buffer(rhs.dtype, &sizes, BufferKind::Temp);
    program.kernels.push(KernelNode {
        kernel: Kernel::Copy(matrix),
        outputs: vec![buffer],
        origin: origin.clone(),
    });
    buffer
}
