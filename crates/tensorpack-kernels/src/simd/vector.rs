//! Vectors of f32 and f64 for hand-written micro-kernels: one trait, one implementation per
//! instruction set and type.

use std::arch::x86_64::*;

/// A vector of floats. The methods compile to the instructions of the function they are inlined in.
///
/// # Safety
/// All methods need a CPU that supports the instructions of the type, and pointers valid for the
/// lanes they touch.
pub(crate) trait Simd: Copy + 'static {
    /// The type of its elements in memory.
    type Element: Copy + 'static;
    /// Elements per vector.
    const LANES: usize;

    /// Returns a vector of zeros.
    unsafe fn zero() -> Self;
    /// Broadcasts the element at `p` to all lanes.
    unsafe fn splat(p: *const Self::Element) -> Self;
    /// Loads all lanes from `p`.
    unsafe fn load(p: *const Self::Element) -> Self;
    /// Loads the first `n` lanes from `p`; the others are zero.
    unsafe fn load_first(p: *const Self::Element, n: usize) -> Self;
    /// Stores all lanes to `p`.
    unsafe fn store(self, p: *mut Self::Element);
    /// Stores the first `n` lanes to `p`.
    unsafe fn store_first(self, p: *mut Self::Element, n: usize);
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
    type Element = f32;
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
    type Element = f32;
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

/// Implements vectors of f64: the names of the instructions, and how the first lanes are loaded and
/// stored.
macro_rules! impl_f64 {
    ($vector:ty, $lanes:literal, $zero:ident, $set1:ident, $load:ident, $store:ident, $fma:ident, $add:ident,
        $sub:ident, $mul:ident, $max:ident,
        |$from:ident, $n:ident| $load_first:expr, |$this:ident, $to:ident, $m:ident| $store_first:expr) => {
        impl Simd for $vector {
            type Element = f64;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller has the instructions, here and below.
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn splat(p: *const f64) -> Self {
                // SAFETY: the caller has a valid pointer.
                unsafe { $set1(*p) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f64) -> Self {
                // SAFETY: the caller has a valid pointer.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn load_first($from: *const f64, $n: usize) -> Self {
                // SAFETY: the caller has a pointer valid for the lanes in the mask.
                unsafe { $load_first }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut f64) {
                // SAFETY: the caller has a valid pointer.
                unsafe { $store(p, self) }
            }
            #[inline(always)]
            unsafe fn store_first(self, $to: *mut f64, $m: usize) {
                let $this = self;
                // SAFETY: the caller has a pointer valid for the lanes in the mask.
                unsafe { $store_first }
            }
            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: as for `zero`.
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as for `zero`.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn sub(self, other: Self) -> Self {
                // SAFETY: as for `zero`.
                unsafe { $sub(self, other) }
            }
            #[inline(always)]
            unsafe fn mul(self, other: Self) -> Self {
                // SAFETY: as for `zero`.
                unsafe { $mul(self, other) }
            }
            #[inline(always)]
            unsafe fn relu(self) -> Self {
                // SAFETY: as for `zero`; the maximum of two numbers is the second one if either is
                // NaN.
                unsafe { $max($zero(), self) }
            }
        }
    };
}

impl_f64!(
    __m512d,
    8,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_max_pd,
    |p, n| _mm512_maskz_loadu_pd(((1u32 << n) - 1) as u8, p),
    |x, p, n| _mm512_mask_storeu_pd(p, ((1u32 << n) - 1) as u8, x)
);

/// Returns a mask whose first `n` of 4 lanes have their highest bit set.
#[inline(always)]
unsafe fn first_lanes_f64(n: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)) }
}

impl_f64!(
    __m256d,
    4,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    _mm256_max_pd,
    |p, n| _mm256_maskload_pd(p, first_lanes_f64(n)),
    |x, p, n| _mm256_maskstore_pd(p, first_lanes_f64(n), x)
);
