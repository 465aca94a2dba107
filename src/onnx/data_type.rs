//! Element types of ONNX tensors.

use tensorpack_tensor::{DType, Error, Result};

/// The values of `TensorProto.DataType`.
pub(super) mod code {
    pub(in crate::onnx) const FLOAT: i64 = 1;
    pub(in crate::onnx) const UINT8: i64 = 2;
    pub(in crate::onnx) const INT8: i64 = 3;
    pub(in crate::onnx) const UINT16: i64 = 4;
    pub(in crate::onnx) const INT16: i64 = 5;
    pub(in crate::onnx) const INT32: i64 = 6;
    pub(in crate::onnx) const INT64: i64 = 7;
    pub(in crate::onnx) const BOOL: i64 = 9;
    pub(in crate::onnx) const FLOAT16: i64 = 10;
    pub(in crate::onnx) const DOUBLE: i64 = 11;
    pub(in crate::onnx) const UINT32: i64 = 12;
    pub(in crate::onnx) const BFLOAT16: i64 = 16;
}

/// Returns the ONNX code of an element type.
pub(super) fn code_of(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => code::FLOAT,
        DType::F64 => code::DOUBLE,
        DType::Bf16 => code::BFLOAT16,
        DType::F16 => code::FLOAT16,
        DType::I32 => code::INT32,
        DType::I64 => code::INT64,
        DType::U8 => code::UINT8,
        DType::Bool => code::BOOL,
    }
}

/// Returns the type in which elements of an ONNX type are computed here. Types without a [`DType`]
/// get one that holds all their values; so does f16, since runtimes on CPUs compute it in f32.
pub(crate) fn dtype_of(code: i64) -> Result<DType> {
    match code {
        code::FLOAT | code::FLOAT16 => Ok(DType::F32),
        code::DOUBLE => Ok(DType::F64),
        code::BFLOAT16 => Ok(DType::Bf16),
        code::INT8 | code::UINT16 | code::INT16 | code::INT32 => Ok(DType::I32),
        code::UINT32 | code::INT64 => Ok(DType::I64),
        code::UINT8 => Ok(DType::U8),
        code::BOOL => Ok(DType::Bool),
        _ => Err(Error::dtype(format!("the ONNX element type {code} is not supported"))),
    }
}
