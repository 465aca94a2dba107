//! Packing: copies the right operand into panels, `k` rows of one tile width each, so that the
//! micro-kernel reads it sequentially in whole vectors. Missing columns become zeros.
//!
//! Elements may be bf16 pairs, so sources need not be aligned.

use std::arch::x86_64::*;

/// Returns the width of a panel of `cols` columns: a multiple of the vector length.
pub(crate) fn width(cols: usize, lanes: usize) -> usize {
    cols.div_ceil(lanes) * lanes
}

/// Prefetches rows of `cols` elements, `stride` apart, into the L1 cache.
#[inline]
pub(crate) fn prefetch<T>(from: *const T, stride: usize, rows: usize, cols: usize) {
    for row in 0..rows {
        let from = from.wrapping_add(row * stride);
        for at in (0..cols).step_by(64 / size_of::<T>()).chain([cols - 1]) {
            // SAFETY: only a hint; any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) }
        }
    }
}

/// An element that is packed: what AVX2 does with a vector of them.
///
/// # Safety
/// All methods need AVX2, and pointers valid for the elements they touch.
pub(crate) trait PackElement: Copy + 'static {
    /// Elements of a vector.
    const GROUP: usize;
    const ZERO: Self;

    /// Loads the first `n` elements of a vector, or all if `n` is larger, and stores as many.
    unsafe fn copy_first(from: *const Self, to: *mut Self, n: usize);
    /// Like `copy_first`, but stores a whole vector, with zeros after the first elements.
    unsafe fn copy_padded(from: *const Self, to: *mut Self, n: usize);
    /// Transposes a square block of [`PackElement::GROUP`] rows.
    unsafe fn transpose_block(src: *const Self, stride: usize, dst: *mut Self, dst_stride: usize);
}

impl PackElement for f32 {
    const GROUP: usize = 8;
    const ZERO: f32 = 0.0;

    #[inline(always)]
    unsafe fn copy_first(from: *const f32, to: *mut f32, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mask = first_lanes(n);
            _mm256_maskstore_ps(to, mask, _mm256_maskload_ps(from, mask));
        }
    }
    #[inline(always)]
    unsafe fn copy_padded(from: *const f32, to: *mut f32, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_storeu_ps(to, _mm256_maskload_ps(from, first_lanes(n))) }
    }
    #[inline(always)]
    unsafe fn transpose_block(src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { transpose_8x8(src, stride, dst, dst_stride) }
    }
}

impl PackElement for f64 {
    const GROUP: usize = 4;
    const ZERO: f64 = 0.0;

    #[inline(always)]
    unsafe fn copy_first(from: *const f64, to: *mut f64, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mask = first_lanes_f64(n);
            _mm256_maskstore_pd(to, mask, _mm256_maskload_pd(from, mask));
        }
    }
    #[inline(always)]
    unsafe fn copy_padded(from: *const f64, to: *mut f64, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_storeu_pd(to, _mm256_maskload_pd(from, first_lanes_f64(n))) }
    }
    #[inline(always)]
    unsafe fn transpose_block(src: *const f64, stride: usize, dst: *mut f64, dst_stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { transpose_4x4(src, stride, dst, dst_stride) }
    }
}

/// Returns a mask of the first `count` of 8 lanes, or of all if there are more.
#[inline]
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// Returns a mask of the first `count` of 4 lanes, or of all if there are more.
#[inline]
#[target_feature(enable = "avx2")]
fn first_lanes_f64(count: usize) -> __m256i {
    _mm256_cmpgt_epi64(_mm256_set1_epi64x(count.min(4) as i64), _mm256_setr_epi64x(0, 1, 2, 3))
}

/// `dst[k * rows + row] = src[k * stride + row]`: packs a tile's rows of a transposed left operand.
///
/// # Safety
/// AVX2; `src` is valid for `steps` steps of `rows` elements `stride` apart, `dst` for `steps *
/// rows`.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_tile<T: PackElement>(
    src: *const T,
    stride: usize,
    steps: usize,
    rows: usize,
    dst: *mut T,
) {
    for row in (0..rows).step_by(T::GROUP) {
        for step in 0..steps {
            let (from, to) = (src.wrapping_add(step * stride + row), dst.wrapping_add(step * rows + row));
            // SAFETY: within the step's rows of both, as the caller guarantees; missing columns are
            // masked out.
            unsafe { T::copy_first(from, to, rows - row) }
        }
    }
}

/// `dst[k * width + col] = src[k * stride + col]`.
///
/// # Safety
/// AVX2; `src` is valid for `rows` rows of `cols` elements `stride` apart, `dst` for `rows *
/// width`, and `cols <= width`, a multiple of the vector's.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_rows<T: PackElement>(
    src: *const T,
    stride: usize,
    rows: usize,
    cols: usize,
    dst: *mut T,
    width: usize,
) {
    let line = 64 / size_of::<T>();
    if cols == width && width.is_multiple_of(line) {
        for row in 0..rows {
            let (from, to) = (src.wrapping_add(row * stride), dst.wrapping_add(row * width));
            for col in (0..width).step_by(line) {
                // SAFETY: within the row's part of both, as the caller guarantees.
                unsafe { from.add(col).cast::<[u8; 64]>().copy_to_nonoverlapping(to.add(col).cast(), 1) }
            }
        }
        return;
    }
    for col in (0..width).step_by(T::GROUP) {
        for row in 0..rows {
            let (from, to) = (src.wrapping_add(row * stride + col), dst.wrapping_add(row * width + col));
            // SAFETY: within the row's part of both, as the caller guarantees; missing columns are
            // masked out.
            unsafe { T::copy_padded(from, to, cols.saturating_sub(col)) }
        }
    }
}

/// `dst[k * width + col] = src[col * stride + k]`: packs a transposed operand.
///
/// # Safety
/// AVX2; `src` is valid for `cols` columns of `rows` elements `stride` apart, `dst` for `rows *
/// width`, and `cols <= width`, a multiple of the vector's.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_columns<T: PackElement>(
    src: *const T,
    stride: usize,
    rows: usize,
    cols: usize,
    dst: *mut T,
    width: usize,
) {
    for col in (0..width).step_by(T::GROUP) {
        let here = cols.saturating_sub(col).min(T::GROUP);
        for row in (0..rows).step_by(T::GROUP) {
            let from = src.wrapping_add(col * stride + row);
            let to = dst.wrapping_add(row * width + col);
            // SAFETY: a block of at most a vector each way, inside the memory that the caller
            // guarantees.
            unsafe {
                if here == T::GROUP && row + T::GROUP <= rows {
                    T::transpose_block(from, stride, to, width);
                    continue;
                }
                for r in 0..(rows - row).min(T::GROUP) {
                    for c in 0..T::GROUP {
                        let from = from.wrapping_add(c * stride + r);
                        *to.add(r * width + c) = if c < here { from.read_unaligned() } else { T::ZERO };
                    }
                }
            }
        }
    }
}

/// # Safety
/// AVX2; 8 rows of 8 elements are valid in both.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose_8x8(src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize) {
    // Loading halves puts rows i and i + 4 in one vector, so that only shuffles within halves
    // remain.
    let load = |row: usize, half: usize| {
        // SAFETY: rows `row` and `row + 4` of the source, as the caller guarantees.
        unsafe {
            let low = _mm_loadu_ps(src.add(row * stride + half * 4));
            let high = _mm_loadu_ps(src.add((row + 4) * stride + half * 4));
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        }
    };
    for half in 0..2 {
        let (r0, r1, r2, r3) = (load(0, half), load(1, half), load(2, half), load(3, half));
        let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let columns = [
            _mm256_shuffle_ps::<0x44>(t0, t2),
            _mm256_shuffle_ps::<0xee>(t0, t2),
            _mm256_shuffle_ps::<0x44>(t1, t3),
            _mm256_shuffle_ps::<0xee>(t1, t3),
        ];
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: row `half * 4 + i` of the destination, as the caller guarantees.
            unsafe { _mm256_storeu_ps(dst.add((half * 4 + i) * dst_stride), column) }
        }
    }
}

/// # Safety
/// AVX2; 4 rows of 4 elements are valid in both.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose_4x4(src: *const f64, stride: usize, dst: *mut f64, dst_stride: usize) {
    // SAFETY: rows of the source, as the caller guarantees.
    let rows = [0, 1, 2, 3].map(|row| unsafe { _mm256_loadu_pd(src.add(row * stride)) });
    let (low, high) = (_mm256_unpacklo_pd(rows[0], rows[1]), _mm256_unpackhi_pd(rows[0], rows[1]));
    let (next_low, next_high) = (_mm256_unpacklo_pd(rows[2], rows[3]), _mm256_unpackhi_pd(rows[2], rows[3]));
    let columns = [
        _mm256_permute2f128_pd::<0x20>(low, next_low),
        _mm256_permute2f128_pd::<0x20>(high, next_high),
        _mm256_permute2f128_pd::<0x31>(low, next_low),
        _mm256_permute2f128_pd::<0x31>(high, next_high),
    ];
    for (i, column) in columns.into_iter().enumerate() {
        // SAFETY: row `i` of the destination, as the caller guarantees.
        unsafe { _mm256_storeu_pd(dst.add(i * dst_stride), column) }
    }
}
