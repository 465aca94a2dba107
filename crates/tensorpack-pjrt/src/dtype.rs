//! Element types: `DType` and `PJRT_Buffer_Type`.

use crate::c_api::*;
use tensorpack_tensor::{DType, Error, Result};

pub(crate) fn to_pjrt(dtype: DType) -> PJRT_Buffer_Type {
    match dtype {
        DType::Bool => PJRT_Buffer_Type_PRED,
        DType::I32 => PJRT_Buffer_Type_S32,
        DType::I64 => PJRT_Buffer_Type_S64,
        DType::U8 => PJRT_Buffer_Type_U8,
        DType::F32 => PJRT_Buffer_Type_F32,
        DType::F64 => PJRT_Buffer_Type_F64,
        DType::Bf16 => PJRT_Buffer_Type_BF16,
        DType::F16 => PJRT_Buffer_Type_F16,
    }
}

pub(crate) fn from_pjrt(wanted: PJRT_Buffer_Type) -> Result<DType> {
    let found = DType::ALL.into_iter().find(|&dtype| to_pjrt(dtype) == wanted);
    found.ok_or_else(|| Error::dtype(format!("PJRT_Buffer_Type {wanted} has no corresponding dtype")))
}
