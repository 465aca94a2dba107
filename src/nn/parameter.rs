//! What layers learn, in the type they compute in.

use crate::graph::{Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::DType;

/// The type of the variables of a layer that computes in `dtype`: in bf16's eight bits small updates would be lost, so
/// there they are f32.
pub(super) fn stored(dtype: DType) -> DType {
    if dtype == DType::Bf16 { DType::F32 } else { dtype }
}

/// The variable of this spec, made or shared, in the type of `x`.
#[track_caller]
pub(super) fn parameter(t: &TowerContext, spec: VariableSpec, x: &Tensor) -> Tensor {
    t.variable(spec.dtype(stored(x.dtype()))).cast(x.dtype())
}
