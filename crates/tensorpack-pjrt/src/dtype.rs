//! Element types, by the numbers that the C API gives them.

use std::ffi::c_int;
use tensorpack_tensor::{DType, Error, Result};

pub(crate) fn number(dtype: DType) -> c_int {
    match dtype {
        DType::Bool => 1,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::Bf16 => 13,
    }
}

pub(crate) fn of_number(wanted: c_int) -> Result<DType> {
    let found = DType::ALL.into_iter().find(|&dtype| number(dtype) == wanted);
    found.ok_or_else(|| Error::dtype(format!("XLA's element type number {wanted} has no counterpart here")))
}
