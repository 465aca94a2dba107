//! Trainable parameters of layers, cast to the data type of the computation.

use crate::graph::{Tensor, Variable, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::DType;

/// Returns the data type of the variables of a layer that computes in `dtype`. A layer that
/// computes in bf16 or f16 stores its variables in f32, because 16 bits would lose small updates.
pub(super) fn variable_dtype(dtype: DType) -> DType {
    dtype.widened()
}

/// Creates or shares the variable of this spec and casts it to the data type of `x`, unless
/// contractions widen `x`: see [`TowerContext::full_precision`].
#[track_caller]
pub(super) fn parameter(t: &TowerContext, spec: VariableSpec, x: &Tensor) -> Tensor {
    cast_parameter(t, &t.variable(spec.dtype(variable_dtype(x.dtype()))), x)
}

/// Casts the variable of a layer to the data type of `x`, as [`parameter`] does.
#[track_caller]
pub(super) fn cast_parameter(t: &TowerContext, variable: &Variable, x: &Tensor) -> Tensor {
    let widens = t.graph().contractions() == Some(DType::F32);
    if widens { variable.value().clone() } else { variable.cast(x.dtype()) }
}
