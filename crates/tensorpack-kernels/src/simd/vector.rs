//! Vectors of f32 for hand-written micro-kernels: one trait, one implementation per instruction
//! set.

use std::arch::x86_64::*;

/// A vector of f32. The methods compile to the instructions of the function they are inlined in.
///
/// # Safety
/// All methods need a CPU that supports the instructions of the type, and pointers valid for the
/// lanes they touch.
pub(crate) trait Simd: Copy + 'static {
    /// Elements per vector.
    const LANES: usize;

    /// Returns a vector of zeros.
    unsafe fn zero() -> Self;
    /// Broadcasts the element at `p` to all lanes.
    unsafe fn splat(p: *const f32) -> Self;
    /// Loads all lanes from `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// Loads the first `n` lanes from `p`; the others are zero.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Stores all lanes to `p`.
    unsafe fn store(self, p: *mut f32);
    /// Stores the first `n` lanes to `p`.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// `a * b + self`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// Replaces negative lanes with zero; NaN stays.
    unsafe fn relu(self) -> Self;
}

impl Simd for __m512 {
    const LANES: usize = 16;

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
        // SAFETY: the caller has the instructions and a pointer valid for the lanes in the mask.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm512_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes in the mask.
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
        // SAFETY: the caller has the instructions. The maximum of two numbers is the second one if
        // either is NaN.
        unsafe { _mm512_max_ps(_mm512_setzero_ps(), self) }
    }
}

/// Returns a mask whose first `n` lanes have their highest bit set.
#[inline(always)]
unsafe fn first_lanes(n: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl Simd for __m256 {
    const LANES: usize = 8;

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
        // SAFETY: the caller has the instructions and a pointer valid for the lanes in the mask.
        unsafe { _mm256_maskload_ps(p, first_lanes(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has the instructions and a valid pointer.
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller has the instructions and a pointer valid for the lanes in the mask.
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
        // SAFETY: the caller has the instructions. The maximum of two numbers is the second one if
        // either is NaN.
        unsafe { _mm256_max_ps(_mm256_setzero_ps(), self) }
    }
}
