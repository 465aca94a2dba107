//! Storage types of elements, and conversions to and from the classes that arithmetic is done in.

use crate::expr::Class;
use tensorpack_tensor::{DType, bf16, f16};

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
        impl To<$class> for f16 {
            #[inline(always)]
            fn to(self) -> $class {
                f32_of_f16(self.to_bits()) as $class
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

impl To<f16> for f32 {
    #[inline(always)]
    fn to(self) -> f16 {
        f16::from_bits(f16_of_f32(self))
    }
}

/// Returns the f32 with the value of the f16 with these bits.
///
/// Threads of a team treat subnormal f32 as zero, so nothing here may be one: a subnormal f16 is
/// put below the leading bit of 2^-14, which is then subtracted. Branch-free, so that it vectorizes.
#[inline(always)]
fn f32_of_f16(bits: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let bits = u32::from(bits);
    let digits = (bits & 0x7fff) << 13;
    let exponent = digits & (0x1f << 23);
    // The exponents have different biases: 127 and 15. Those of infinity and NaN are all ones.
    let normal = digits + ((127 - 15) << 23);
    let not_finite = digits + ((255 - 31) << 23);
    let subnormal = f32::from_bits(digits + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let magnitude = if exponent == 0 { subnormal.to_bits() } else { normal };
    let magnitude = if exponent == 0x1f << 23 { not_finite } else { magnitude };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Returns the bits of the nearest f16, ties to even. NaN stays NaN, quiet.
///
/// What is subnormal as f16 is rounded by adding 0.5, an f32 whose last digit is the last digit of
/// those numbers. Branch-free, so that it vectorizes.
#[inline(always)]
fn f16_of_f32(value: f32) -> u16 {
    /// The smallest magnitude that overflows to infinity, 65520: half a digit above the largest f16.
    const OVERFLOW: u32 = 0x477f_f000;
    const SMALLEST_NORMAL: u32 = 113 << 23;
    const HALF: u32 = 126 << 23;
    let bits = value.to_bits();
    let digits = bits & 0x7fff_ffff;
    let odd = digits >> 13 & 1;
    let normal = digits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let subnormal = (f32::from_bits(digits) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    let magnitude = if digits < SMALLEST_NORMAL { subnormal } else { normal };
    let magnitude = if digits >= OVERFLOW { 0x7c00 } else { magnitude };
    let magnitude = if digits > 0x7f80_0000 { 0x7e00 | (digits >> 13 & 0x3ff) } else { magnitude };
    (magnitude | bits >> 16 & 0x8000) as u16
}

macro_rules! through_f32 {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl To<$to> for $from {
            #[inline(always)]
            fn to(self) -> $to {
                // Through f32, like arithmetic on floats of 16 bits.
                (self as f32).to()
            }
        }
    )*)*};
}
through_f32! {
    f64 => bf16, f16;
    i64 => bf16, f16;
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
            DType::F16 => {
                type $t = tensorpack_tensor::f16;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_becomes_its_f32_and_back() {
        for bits in 0..=u16::MAX {
            let (value, wide) = (f16::from_bits(bits), f32_of_f16(bits));
            assert_eq!(wide.is_nan(), value.is_nan(), "{bits:#x}");
            if value.is_nan() {
                assert!(f16::from_bits(f16_of_f32(wide)).is_nan(), "{bits:#x}");
            } else {
                assert_eq!(wide.to_bits(), value.to_f32_const().to_bits(), "{bits:#x}");
                assert_eq!(f16_of_f32(wide), bits);
            }
        }
    }

    #[test]
    fn f32_is_rounded_to_the_nearest_f16_with_ties_to_even() {
        // Halfway between neighbors, and next to halfway, over all finite magnitudes.
        for bits in 0..0x7c00u16 {
            let [low, high] = [bits, bits + 1].map(|b| f64::from(f32_of_f16(b)));
            let high = if high.is_finite() { high } else { 65536.0 };
            let middle = ((low + high) / 2.0) as f32;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            let [below, above] = [middle.to_bits() - 1, middle.to_bits() + 1].map(f32::from_bits);
            assert_eq!([below, middle, above].map(f16_of_f32), [bits, even, bits + 1], "{low} to {high}");
            assert_eq!(f16_of_f32(-middle), even | 0x8000);
        }
        assert_eq!([f32::INFINITY, f32::MAX, f32::MIN_POSITIVE].map(f16_of_f32), [0x7c00, 0x7c00, 0]);
    }
}
