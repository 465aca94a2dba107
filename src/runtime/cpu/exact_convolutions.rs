//! Full precision: convolutions use the direct algorithm only.

use crate::kir::{ContractKind, Kernel, Program};

/// Rules out Winograd for all convolutions.
pub(super) fn exact_convolutions(program: &mut Program) {
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
