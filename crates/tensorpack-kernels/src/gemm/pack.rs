//! Packing: copies the right operand into panels, `k` rows of one tile width each, so that the
//! micro-kernel reads it sequentially in whole vectors. Missing columns become zeros.

use std::arch::x86_64::*;

/// Returns the width of a panel of `cols` columns: a multiple of the vector length.
pub(crate) fn width(cols: usize, lanes: usize) -> usize {
    cols.div_ceil(lanes) * lanes
}

/// Prefetches rows of `cols` elements, `stride` apart, into the L1 cache.
#[inline]
pub(crate) fn prefetch(from: *const f32, stride: usize, rows: usize, cols: usize) {
    for row in 0..rows {
        let from = from.wrapping_add(row * stride);
        for at in (0..cols).step_by(16).chain([cols - 1]) {
            // SAFETY: only a hint; any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) }
        }
    }
}

/// Returns a mask of the first `count` of 8 lanes, or of all if there are more.
#[inline]
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// `dst[k * rows + row] = src[k * stride + row]`: packs a tile's rows of a transposed left operand.
///
/// # Safety
/// AVX2; `src` is valid for `steps` steps of `rows` elements `stride` apart, `dst` for `steps *
/// rows`.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_tile(src: *const f32, stride: usize, steps: usize, rows: usize, dst: *mut f32) {
    for row in (0..rows).step_by(8) {
        let mask = first_lanes(rows - row);
        for step in 0..steps {
            let (from, to) = (src.wrapping_add(step * stride + row), dst.wrapping_add(step * rows + row));
            // SAFETY: within the step's rows of both, as the caller guarantees; missing columns are
            // masked out.
            unsafe { _mm256_maskstore_ps(to, mask, _mm256_maskload_ps(from, mask)) }
        }
    }
}

/// `dst[k * width + col] = src[k * stride + col]`.
///
/// # Safety
/// AVX2; `src` is valid for `rows` rows of `cols` elements `stride` apart, `dst` for `rows *
/// width`, and `cols <= width`, a multiple of 8.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_rows(
    src: *const f32,
    stride: usize,
    rows: usize,
    cols: usize,
    dst: *mut f32,
    width: usize,
) {
    if cols == width && width.is_multiple_of(16) {
        for row in 0..rows {
            let (from, to) = (src.wrapping_add(row * stride), dst.wrapping_add(row * width));
            for col in (0..width).step_by(16) {
                // SAFETY: within the row's part of both, as the caller guarantees.
                unsafe { std::ptr::copy_nonoverlapping(from.add(col), to.add(col), 16) }
            }
        }
        return;
    }
    for col in (0..width).step_by(8) {
        let mask = first_lanes(cols.saturating_sub(col));
        for row in 0..rows {
            let (from, to) = (src.wrapping_add(row * stride + col), dst.wrapping_add(row * width + col));
            // SAFETY: within the row's part of both, as the caller guarantees; missing columns are
            // masked out.
            unsafe { _mm256_storeu_ps(to, _mm256_maskload_ps(from, mask)) }
        }
    }
}

/// `dst[k * width + col] = src[col * stride + k]`: packs a transposed operand.
///
/// # Safety
/// AVX2; `src` is valid for `cols` columns of `rows` elements `stride` apart, `dst` for `rows *
/// width`, and `cols <= width`, a multiple of 8.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pack_columns(
    src: *const f32,
    stride: usize,
    rows: usize,
    cols: usize,
    dst: *mut f32,
    width: usize,
) {
    for col in (0..width).step_by(8) {
        let here = cols.saturating_sub(col).min(8);
        for row in (0..rows).step_by(8) {
            let from = src.wrapping_add(col * stride + row);
            let to = dst.wrapping_add(row * width + col);
            // SAFETY: a block of at most 8 by 8, inside the memory that the caller guarantees.
            unsafe {
                if here == 8 && row + 8 <= rows {
                    transpose_8x8(from, stride, to, width);
                    continue;
                }
                for r in 0..(rows - row).min(8) {
                    for c in 0..8 {
                        *to.add(r * width + c) = if c < here { *from.add(c * stride + r) } else { 0.0 };
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
