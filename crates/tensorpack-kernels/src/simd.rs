//! Vectors of f32 as the tile kernel sees them: one trait, a type for each instruction set.

use std::arch::x86_64::*;

use crate::Bias;
use crate::scatter::{self, ScatterFn};
use crate::slide::{self, SlideFn};
use crate::slide_filter::{self, SlideFilterFn};
use crate::squares::forms::{self, Forms};
use crate::tile::{self, TileFn};

/// A vector of f32. The methods compile to the instructions of the function they are inlined in.
///
/// # Safety
/// All methods need a machine that has the instructions of the type, and pointers valid for the lanes they touch.
pub(crate) trait Simd: Copy + 'static {
    /// Numbers in a vector.
    const LANES: usize;
    /// The most columns of a tile.
    const WIDEST: usize;

    /// The most pixels of a slide, with one and with two vectors of channels; 0 if the registers are too few for any.
    const MAX_PIXELS: [usize; 2];

    /// The most input channels of a sliding filter gradient, likewise.
    const MAX_CHANNELS: [usize; 2];

    /// The changes of form of [squares](crate::squares).
    const FORMS: &'static Forms;

    /// All lanes zero.
    unsafe fn zero() -> Self;
    /// All lanes the number at `p`.
    unsafe fn splat(p: *const f32) -> Self;
    /// All lanes from `p` on.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n` lanes from `p` on, the others zero.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Writes all lanes.
    unsafe fn store(self, p: *mut f32);
    /// Writes the first `n` lanes.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// `a * b + self`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// Zero where negative; NaN stays.
    unsafe fn relu(self) -> Self;
    /// Does what `bias` says to rows of `cols` columns, just written and still in the nearest cache.
    unsafe fn finish_rows(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>);
    /// The kernels for tiles of `vectors` vectors and one row, two rows, and so on; see [`tile`].
    fn tiles(vectors: usize, along_k: bool) -> &'static [TileFn];
    /// The kernels for numbers of pixels and `vectors` vectors, in order; see [`scatter`].
    fn scatter(vectors: usize) -> &'static [ScatterFn];
    /// The kernel for a run of `pixels` pixels and `vectors` vectors of channels; see [`slide`].
    fn slide(pixels: usize, vectors: usize) -> SlideFn;
    /// The kernel for `channels` input channels and `vectors` vectors of output channels; see [`slide_filter`].
    fn slide_filter(channels: usize, vectors: usize) -> SlideFilterFn;
}

/// Adds a bias and takes the positive part, as asked.
///
/// # Safety
/// The machine has the instructions of `V`, and the rows of `c` and the columns of the bias are valid.
#[inline(always)]
unsafe fn finish_rows<V: Simd>(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
    for from in (0..cols).step_by(V::LANES) {
        let lanes = (cols - from).min(V::LANES);
        // SAFETY: as the caller vouches.
        unsafe {
            let add = if bias.add.is_null() { V::zero() } else { V::load_first(bias.add.add(from), lanes) };
            for row in 0..rows {
                let c = c.add(row * c_row + from);
                let sum = V::load_first(c, lanes);
                // Adding a zero where there is no bias would turn -0 into 0.
                let sum = if bias.add.is_null() { sum } else { sum.add(add) };
                (if bias.relu { sum.relu() } else { sum }).store_first(c, lanes);
            }
        }
    }
}

impl Simd for __m512 {
    const LANES: usize = 16;
    const WIDEST: usize = 64;
    const MAX_PIXELS: [usize; 2] = [slide::AVX512_ONE.len(), slide::AVX512_TWO.len()];
    const MAX_CHANNELS: [usize; 2] = [slide_filter::AVX512_ONE.len(), slide_filter::AVX512_TWO.len()];
    const FORMS: &'static Forms = &forms::AVX512;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> Self {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm512_set1_ps(*p) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes that the mask leaves.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm512_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes that the mask leaves.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as u16, self) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: the caller has the instructions. Of two numbers, one of them NaN, the second is the maximum.
        unsafe { _mm512_max_ps(_mm512_setzero_ps(), self) }
    }
    unsafe fn finish_rows(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn finish(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
            // SAFETY: passed on from the caller.
            unsafe { finish_rows::<__m512>(c, c_row, rows, cols, bias) }
        }
        // SAFETY: passed on from the caller, who has the instructions.
        unsafe { finish(c, c_row, rows, cols, bias) }
    }
    fn tiles(vectors: usize, along_k: bool) -> &'static [TileFn] {
        tile::AVX512[usize::from(along_k)][vectors - 1]
    }
    fn scatter(vectors: usize) -> &'static [ScatterFn] {
        &scatter::AVX512[vectors - 1]
    }
    fn slide(pixels: usize, vectors: usize) -> SlideFn {
        match vectors {
            1 => slide::AVX512_ONE[pixels - 1],
            _ => slide::AVX512_TWO[pixels - 1],
        }
    }
    fn slide_filter(channels: usize, vectors: usize) -> SlideFilterFn {
        match vectors {
            1 => slide_filter::AVX512_ONE[channels - 1],
            _ => slide_filter::AVX512_TWO[channels - 1],
        }
    }
}

/// The lanes of `__m256` below `n` have their highest bit set.
#[inline(always)]
unsafe fn first_lanes(n: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl Simd for __m256 {
    const LANES: usize = 8;
    const WIDEST: usize = 16;
    const MAX_PIXELS: [usize; 2] = [0, 0];
    const MAX_CHANNELS: [usize; 2] = [0, 0];
    const FORMS: &'static Forms = &forms::AVX2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> Self {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm256_set1_ps(*p) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes that the mask leaves.
        unsafe { _mm256_maskload_ps(p, first_lanes(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes that the mask leaves.
        unsafe { _mm256_maskstore_ps(p, first_lanes(n), self) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: the caller has the instructions. Of two numbers, one of them NaN, the second is the maximum.
        unsafe { _mm256_max_ps(_mm256_setzero_ps(), self) }
    }
    unsafe fn finish_rows(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn finish(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
            // SAFETY: passed on from the caller.
            unsafe { finish_rows::<__m256>(c, c_row, rows, cols, bias) }
        }
        // SAFETY: passed on from the caller, who has the instructions.
        unsafe { finish(c, c_row, rows, cols, bias) }
    }
    fn tiles(vectors: usize, along_k: bool) -> &'static [TileFn] {
        tile::AVX2[usize::from(along_k)][vectors - 1]
    }
    fn scatter(vectors: usize) -> &'static [ScatterFn] {
        &scatter::AVX2[vectors - 1]
    }
    fn slide(_: usize, _: usize) -> SlideFn {
        unreachable!("a vector that slides no pixels is never asked to")
    }
    fn slide_filter(_: usize, _: usize) -> SlideFilterFn {
        unreachable!("a vector that slides no channels is never asked to")
    }
}
