//! Storage types of elements, and conversions to and from the classes that arithmetic is done in.

use crate::expr::Class;
use tensorpack_tensor::{DType, bf16};

/// A bool in memory: one byte; any value but 0 is true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bool(u8);

/// Converts a value with the semantics of Rust's `as`; to a bool by comparing with 0.
pub(crate) trait To<T> {
    /// Returns the value as `T`.
    fn to(self) -> T;
}

macro_rules! by_as {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl To<$to> for $from {
            #[inline(always)]
            fn to(self) -> $to {
                self as $to
            }
        }
    )*)*};
}
by_as! {
    f32 => f32, f64, i64, i32, u8;
    f64 => f32, f64, i64, i32, u8;
    i64 => f32, f64, i64, i32, u8;
    i32 => f32, f64, i64;
    u8 => f32, f64, i64;
}

macro_rules! by_class {
    ($($class:ty),*) => {$(
        impl To<$class> for Bool {
            #[inline(always)]
            fn to(self) -> $class {
                u8::from(self.0 != 0) as $class
            }
        }
        impl To<Bool> for $class {
            #[inline(always)]
            fn to(self) -> Bool {
                Bool(u8::from(self != 0 as $class))
            }
        }
        impl To<$class> for bf16 {
            #[inline(always)]
            fn to(self) -> $class {
                f32::from_bits(u32::from(self.to_bits()) << 16) as $class
            }
        }
    )*};
}
by_class!(f32, f64, i64);

impl To<bf16> for f32 {
    #[inline(always)]
    fn to(self) -> bf16 {
        // To nearest, ties to even; branch-free so that it vectorizes.
        let bits = self.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if self.is_nan() { quiet } else { rounded } as u16)
    }
}

impl To<bf16> for f64 {
    #[inline(always)]
    fn to(self) -> bf16 {
        // Through f32, like arithmetic on bf16.
        (self as f32).to()
    }
}

impl To<bf16> for i64 {
    #[inline(always)]
    fn to(self) -> bf16 {
        (self as f32).to()
    }
}

/// Runs the body with `$t` as the Rust type of a dtype's elements in memory.
macro_rules! with_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::Bf16 => {
                type $t = tensorpack_tensor::bf16;
                $body
            }
            DType::I32 => {
                type $t = i32;
                $body
            }
            DType::I64 => {
                type $t = i64;
                $body
            }
            DType::U8 => {
                type $t = u8;
                $body
            }
            DType::Bool => {
                type $t = $crate::scalar::element::Bool;
                $body
            }
        }
    };
}
pub(crate) use with_dtype;

/// Runs the body with `$t` as the Rust type that a class computes in.
macro_rules! with_class {
    ($class:expr, $t:ident => $body:expr) => {
        match $class {
            Class::F32 => {
                type $t = f32;
                $body
            }
            Class::F64 => {
                type $t = f64;
                $body
            }
            Class::I64 => {
                type $t = i64;
                $body
            }
        }
    };
}
pub(crate) use with_class;

/// Returns the bytes of a value of `class`.
pub(crate) const fn class_size(class: Class) -> usize {
    match class {
        Class::F32 => 4,
        Class::F64 | Class::I64 => 8,
    }
}

/// Returns whether elements of `dtype` need no conversion to `class`.
pub(crate) fn is_native(dtype: DType, class: Class) -> bool {
    matches!((dtype, class), (DType::F32, Class::F32) | (DType::F64, Class::F64) | (DType::I64, Class::I64))
}

/// Converts `n` elements at `src`, `stride` apart, to contiguous elements at `dst`.
///
/// # Safety
/// These elements must be readable at `src`, `n` elements must be writable at `dst`, and the two
/// must not overlap.
#[inline(always)]
pub(crate) unsafe fn convert<S: Copy + To<D>, D: Copy>(n: usize, src: *const S, stride: isize, dst: *mut D) {
    // SAFETY: the caller guarantees n elements at `dst`.
    let dst = unsafe { std::slice::from_raw_parts_mut(dst, n) };
    match stride {
        1 => {
            // SAFETY: with stride 1 the source is n contiguous elements.
            let src = unsafe { std::slice::from_raw_parts(src, n) };
            for (d, s) in dst.iter_mut().zip(src) {
                *d = s.to();
            }
        }
        0 => {
            if n > 0 {
                // SAFETY: the source has at least one element.
                dst.fill(unsafe { *src }.to());
            }
        }
        _ => {
            for (i, d) in dst.iter_mut().enumerate() {
                // SAFETY: the caller guarantees these elements.
                *d = unsafe { *src.offset(i as isize * stride) }.to();
            }
        }
    }
}
