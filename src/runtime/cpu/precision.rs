//! Full precision, for those who ask for it.

use crate::kir::{ContractKind, Kernel, Program};

/// Has convolutions take every product of their definition.
pub(super) fn by_definition(program: &mut Program) {
    for node in &mut program.kernels {
        if let Kernel::Contract {
            kind:
                ContractKind::Conv2d(conv)
                | ContractKind::Conv2dInputGrad(conv)
                | ContractKind::Conv2dFilterGrad(conv),
            ..
        } = &mut node.kernel
        {
            conv.by_definition = true;
        }
    }
}
