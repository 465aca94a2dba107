//! Extremes of float arrays, and the check that all elements are finite. Trainers check every
//! gradient, so this takes one vectorized pass.

use crate::Isa;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::{DType, bf16, f16};

/// The largest and smallest of some floats of one type, as bits.
///
/// Compared as unsigned integers, the bits of negative floats are above those of all others, and
/// within each sign the bits grow with the magnitude, infinity above all finite numbers and NaN
/// above infinity. So a signed and an unsigned integer maximum find both extremes and everything
/// that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extremes {
    /// The largest bits of any non-negative float, or 0.
    pub top: u64,
    /// The largest bits of any float.
    pub bottom: u64,
}

/// Returns the bits of infinity, and the mask of all bits but the sign.
fn infinity_and_digits(dtype: DType) -> Option<(u64, u64)> {
    match dtype {
        DType::F32 => Some((0x7f80_0000, 0x7fff_ffff)),
        DType::F64 => Some((0x7ff0_0000_0000_0000, 0x7fff_ffff_ffff_ffff)),
        DType::Bf16 => Some((0x7f80, 0x7fff)),
        DType::F16 => Some((0x7c00, 0x7fff)),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => None,
    }
}

impl Extremes {
    /// Combines the extremes of two arrays.
    pub fn and(self, other: Extremes) -> Extremes {
        Extremes { top: self.top.max(other.top), bottom: self.bottom.max(other.bottom) }
    }

    /// Returns whether none of the floats, which are of type `dtype`, is NaN or infinite.
    pub fn are_finite(self, dtype: DType) -> bool {
        infinity_and_digits(dtype)
            .is_none_or(|(infinity, digits)| self.top < infinity && self.bottom & digits < infinity)
    }

    /// Returns a lower and an upper bound of the floats, which are of type `dtype`. The bounds
    /// always include 0.
    pub fn bounds(self, dtype: DType) -> [f64; 2] {
        let float = |bits: u64| match dtype {
            DType::F32 => f32::from_bits(bits as u32).into(),
            DType::F64 => f64::from_bits(bits),
            DType::Bf16 => bf16::from_bits(bits as u16).to_f32().into(),
            DType::F16 => f16::from_bits(bits as u16).to_f32().into(),
            _ => 0.0,
        };
        // Without a negative float, `bottom` is no lower bound.
        [float(self.bottom).min(0.0), float(self.top).max(0.0)]
    }
}

/// Returns the extremes of `len` elements; zeros for types that are not floats.
///
/// # Safety
/// `data` must hold `len` aligned elements of `dtype`, and the CPU must support `isa`.
pub unsafe fn extremes(isa: Isa, dtype: DType, data: *const u8, len: usize) -> Extremes {
    // SAFETY: guaranteed by the caller.
    let (top, bottom) = unsafe {
        match dtype {
            DType::F32 => extremes_f32(isa, data.cast(), len),
            DType::F64 => extremes_f64(isa, data.cast(), len),
            DType::Bf16 | DType::F16 => extremes_of_16_bits(isa, data.cast(), len),
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => (0, 0),
        }
    };
    Extremes { top, bottom }
}

/// Returns whether none of `len` elements is NaN or infinite; true for types without such values.
///
/// # Safety
/// Same as [`extremes`].
pub unsafe fn all_finite(isa: Isa, dtype: DType, data: *const u8, len: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { extremes(isa, dtype, data, len) }.are_finite(dtype)
}

/// Defines the extremes of one float type, from its bits as signed and unsigned integers.
macro_rules! extremes {
    ($name:ident, $body:ident, $bits:ty, $signed:ty) => {
        per_isa! {
            /// # Safety
            /// Same as [`extremes`].
            unsafe fn $name(data: *const $bits, len: usize) -> (u64, u64) = $body
        }

        #[inline(always)]
        unsafe fn $body<const FAST: bool>(data: *const $bits, len: usize) -> (u64, u64) {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { std::slice::from_raw_parts(data, len) };
            let (mut top, mut bottom): ($signed, $bits) = (0, 0);
            for &x in data {
                top = top.max(x as $signed);
                bottom = bottom.max(x);
            }
            (top as u64, bottom as u64)
        }
    };
}
extremes!(extremes_f32, extremes_f32_body, u32, i32);
extremes!(extremes_f64, extremes_f64_body, u64, i64);
extremes!(extremes_of_16_bits, extremes_of_16_bits_body, u16, i16);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy>(dtype: DType, fine: &[T], bad: &[T]) {
        for isa in Isa::available() {
            for len in [0, 1, 31, 4096, 9999] {
                let mut data: Vec<T> = (0..len).map(|i| fine[i % fine.len()]).collect();
                // SAFETY: the vector has `len` elements.
                assert!(unsafe { all_finite(isa, dtype, data.as_ptr().cast(), len) });
                for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|_| len > 0) {
                    for &b in bad {
                        let kept = std::mem::replace(&mut data[at], b);
                        // SAFETY: as above.
                        assert!(!unsafe { all_finite(isa, dtype, data.as_ptr().cast(), len) });
                        data[at] = kept;
                    }
                }
            }
        }
    }

    #[test]
    fn finds_the_largest_and_the_smallest() {
        for isa in Isa::available() {
            let of = |data: &[f32]| {
                // SAFETY: the slice has that many elements.
                unsafe { extremes(isa, DType::F32, data.as_ptr().cast(), data.len()) }.bounds(DType::F32)
            };
            assert_eq!(of(&[]), [0.0, 0.0]);
            assert_eq!(of(&[1.5, 3.0, 0.25]), [0.0, 3.0]);
            assert_eq!(of(&[-1.5, -3.0, -0.0]), [-3.0, 0.0]);
            let many: Vec<f32> = (-700..900).map(|i| i as f32).collect();
            assert_eq!(of(&many), [-700.0, 899.0]);
            let wide = [1e300, -1e-300, 4.0, -1e200];
            // SAFETY: as above.
            let wide = unsafe { extremes(isa, DType::F64, wide.as_ptr().cast(), wide.len()) };
            assert_eq!(wide.bounds(DType::F64), [-1e200, 1e300]);
        }
    }

    #[test]
    fn finds_every_nan_and_infinity() {
        check(
            DType::F32,
            &[0.0, -1.0, f32::MAX, f32::MIN],
            &[f32::NAN, -f32::NAN, f32::INFINITY, -f32::INFINITY],
        );
        check(
            DType::F64,
            &[0.0, -1.0, f64::MAX, f64::MIN],
            &[f64::NAN, -f64::NAN, f64::INFINITY, -f64::INFINITY],
        );
        let b = tensorpack_tensor::bf16::from_f32;
        check(DType::Bf16, &[b(0.0), b(-1e30)], &[b(f32::NAN), b(f32::INFINITY), b(-f32::INFINITY)]);
        let h = f16::from_f32;
        check(DType::F16, &[h(0.0), f16::MIN], &[f16::NAN, f16::INFINITY, f16::NEG_INFINITY]);
        check::<i32>(DType::I32, &[-1, 0x7f80_0000], &[]);
    }
}
