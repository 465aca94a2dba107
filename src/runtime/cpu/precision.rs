//! The full-precision option: convolutions without Winograd.

use crate::kir::{ContractKind, Kernel, Program};

/// Sets [`Conv2d::exact`](tensorpack_kernels::Conv2d) on every convolution of `program`.
pub(super) fn use_exact_convolutions(program: &mut Program) {
    for node in &mut program.kernels {
        if let Kernel::Contract {
            kind:
                ContractKind::Conv2d(conv)
                | ContractKind::Conv2dInputGrad(conv)
                | ContractKind::Conv2dFilterGrad(conv),
            ..
        } = &mut node.kernel
        {
            conv.exact = true;
        }
    }
}
