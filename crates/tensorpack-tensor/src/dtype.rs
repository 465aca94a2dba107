//! Element types.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit float, the default for training.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit brain float. A storage type: arithmetic runs in f32.
    Bf16,
    /// 16-bit IEEE float, with more digits than bf16 and a smaller range: the largest is 65504. A
    /// storage type: arithmetic runs in f32.
    F16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 8-bit unsigned integer.
    U8,
    /// Boolean, one byte.
    Bool,
}

impl DType {
    /// All element types.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32, DType::I64, DType::U8, DType::Bool];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Returns whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64) || self.is_narrow_float()
    }

    /// Returns whether this is a float of 16 bits: a storage type whose arithmetic runs in f32.
    pub const fn is_narrow_float(self) -> bool {
        matches!(self, DType::Bf16 | DType::F16)
    }

    /// Returns the type that arithmetic on this type runs in: f32 for floats of 16 bits, otherwise
    /// the type itself.
    pub const fn widened(self) -> DType {
        if self.is_narrow_float() { DType::F32 } else { self }
    }

    /// Returns whether this is an integer type. `Bool` is not.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64 | DType::U8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::Bool => "bool",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be a tensor element.
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The [`DType`] of this Rust type.
    const DTYPE: DType;
    #[doc(hidden)]
    fn wrap(values: Vec<Self>) -> crate::host_tensor::Storage;
    #[doc(hidden)]
    fn slice(storage: &crate::host_tensor::Storage) -> Option<&[Self]>;
    #[doc(hidden)]
    fn slice_mut(storage: &mut crate::host_tensor::Storage) -> Option<&mut [Self]>;
}

macro_rules! element {
    ($($t:ty => $v:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$v;
            fn wrap(values: Vec<$t>) -> crate::host_tensor::Storage {
                crate::host_tensor::Storage::$v(values)
            }
            fn slice(storage: &crate::host_tensor::Storage) -> Option<&[$t]> {
                match storage { crate::host_tensor::Storage::$v(v) => Some(v), _ => None }
            }
            fn slice_mut(storage: &mut crate::host_tensor::Storage) -> Option<&mut [$t]> {
                match storage { crate::host_tensor::Storage::$v(v) => Some(v), _ => None }
            }
        }
    )*};
}
element!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16, i32 => I32, i64 => I64, u8 => U8, bool => Bool);
