//! Whether numbers are all finite: what a trainer asks of every gradient, so it should cost one pass over memory.

use crate::Isa;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::DType;

/// Elements between looks at what was found so far.
const BLOCK: usize = 4096;

/// Whether none of `len` elements is NaN or infinite; true for types that have no such values.
///
/// # Safety
/// `data` must hold `len` elements of `dtype`, aligned for it, and the machine have the instructions of `isa`.
pub unsafe fn all_finite(isa: Isa, dtype: DType, data: *const u8, len: usize) -> bool {
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::F32 => finite_f32(isa, data.cast(), len),
            DType::F64 => finite_f64(isa, data.cast(), len),
            DType::Bf16 => finite_bf16(isa, data.cast(), len),
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => true,
        }
    }
}

/// A check of one float type by its bits: an exponent of all ones is NaN or infinite.
macro_rules! finite {
    ($name:ident, $body:ident, $bits:ty, $exponent:expr) => {
        per_isa! {
            /// # Safety
            /// As for [`all_finite`].
            unsafe fn $name(data: *const $bits, len: usize) -> bool = $body
        }

        #[inline(always)]
        unsafe fn $body<const FAST: bool>(data: *const $bits, len: usize) -> bool {
            // SAFETY: passed on from the caller.
            let data = unsafe { std::slice::from_raw_parts(data, len) };
            // The largest exponent says whether any is all ones.
            data.chunks(BLOCK)
                .all(|block| block.iter().fold(0, |top, &x| (x & $exponent).max(top)) != $exponent)
        }
    };
}
finite!(finite_f32, finite_f32_body, u32, 0x7f80_0000);
finite!(finite_f64, finite_f64_body, u64, 0x7ff0_0000_0000_0000);
finite!(finite_bf16, finite_bf16_body, u16, 0x7f80);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy>(dtype: DType, fine: &[T], bad: &[T]) {
        for isa in Isa::available() {
            for len in [0, 1, 31, 4096, 9999] {
                let mut data: Vec<T> = (0..len).map(|i| fine[i % fine.len()]).collect();
                // SAFETY: the vector has as many elements.
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
        check::<i32>(DType::I32, &[-1, 0x7f80_0000], &[]);
    }
}
