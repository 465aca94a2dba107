//! Vectors of bf16 pairs. A lane of 32 bits holds two neighboring terms of a sum, the first in the
//! low half; a multiply-add multiplies the pairs and adds both products to an f32.
//!
//! So everything written for f32 (micro-kernels, packing, windows of images) works on pairs: only
//! the sum is half as long. Pairs are kept in memory typed as f32, but are only moved, never
//! computed with as such; sums are f32.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::vector::Simd;

/// 16 pairs, or 16 sums.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pairs512(__m512);

/// 8 pairs, or 8 sums.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pairs256(__m256);

/// Implements vectors of pairs: loads and stores of 32-bit lanes, and arithmetic of sums, are those
/// of f32.
macro_rules! impl_pairs {
    ($type:ident, $floats:ty, $pairs:ty, $dot:ident) => {
        impl Simd for $type {
            type Element = f32;
            const LANES: usize = <$floats>::LANES;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: guaranteed by the caller, here and below.
                unsafe { $type(<$floats>::zero()) }
            }
            #[inline(always)]
            unsafe fn splat(p: *const f32) -> Self {
                // SAFETY: as above. Pairs are aligned like bf16.
                let pair = unsafe { p.read_unaligned() };
                // SAFETY: a local.
                unsafe { $type(<$floats>::splat(&pair)) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> Self {
                // SAFETY: as above.
                unsafe { $type(<$floats>::load(p)) }
            }
            #[inline(always)]
            unsafe fn load_first(p: *const f32, n: usize) -> Self {
                // SAFETY: as above.
                unsafe { $type(<$floats>::load_first(p, n)) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut f32) {
                // SAFETY: as above.
                unsafe { self.0.store(p) }
            }
            #[inline(always)]
            unsafe fn store_first(self, p: *mut f32, n: usize) {
                // SAFETY: as above.
                unsafe { self.0.store_first(p, n) }
            }
            /// Adds both products of each pair of `a` and `b` to the sums.
            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: as above; vectors of floats and of bf16 have the same size, and any bits
                // are valid in both.
                unsafe {
                    $type($dot(self.0, transmute::<$floats, $pairs>(a.0), transmute::<$floats, $pairs>(b.0)))
                }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $type(self.0.add(other.0)) }
            }
            #[inline(always)]
            unsafe fn sub(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $type(self.0.sub(other.0)) }
            }
            #[inline(always)]
            unsafe fn mul(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $type(self.0.mul(other.0)) }
            }
            #[inline(always)]
            unsafe fn relu(self) -> Self {
                // SAFETY: as above.
                unsafe { $type(self.0.relu()) }
            }
        }
    };
}
impl_pairs!(Pairs512, __m512, __m512bh, _mm512_dpbf16_ps);
impl_pairs!(Pairs256, __m256, __m256bh, _mm256_dpbf16_ps);
