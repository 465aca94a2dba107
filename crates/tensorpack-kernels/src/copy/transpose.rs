//! Blocked matrix transposition, in blocks of whole cache lines; 4-byte elements go through vector
//! registers.

use crate::Isa;

/// Side of a block: a cache line of 4-byte elements.
const SIDE: usize = 16;

/// Columns of a band of blocks: no more source rows than the L1 TLB has entries.
const BAND: usize = 48;

/// `dst[i * dst_pitch + j] = src[i + j * src_pitch]` for `i` and `j` below `dims`.
///
/// # Safety
/// These elements must be readable at `src` and writable at `dst`, the two must not overlap, and
/// the CPU must support `isa`.
pub(crate) unsafe fn transpose<T: Copy>(
    isa: Isa,
    src: *const T,
    src_pitch: isize,
    dst: *mut T,
    dst_pitch: isize,
    dims: [usize; 2],
) {
    let [rows, cols] = dims;
    // In bands of columns, so that the pages of the source rows are still in the TLB for the next
    // row of blocks.
    for band in (0..cols).step_by(BAND) {
        let end = cols.min(band + BAND);
        for i in (0..rows).step_by(SIDE) {
            for j in (band..end).step_by(SIDE) {
                let s = src.wrapping_offset(i as isize + j as isize * src_pitch);
                let d = dst.wrapping_offset(i as isize * dst_pitch + j as isize);
                let dims = [SIDE.min(rows - i), SIDE.min(end - j)];
                // SAFETY: guaranteed by the caller; the block is inside the matrix.
                unsafe { block(isa, s, src_pitch, d, dst_pitch, dims) };
            }
        }
    }
}

/// Transposes a block of at most `SIDE` by `SIDE`.
///
/// # Safety
/// Same as [`transpose`].
#[inline(always)]
unsafe fn block<T: Copy>(
    isa: Isa,
    src: *const T,
    src_pitch: isize,
    dst: *mut T,
    dst_pitch: isize,
    dims: [usize; 2],
) {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 && size_of::<T>() == 4 && dims == [SIDE; 2] {
        for (p, q) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            let s = src.wrapping_offset(p + q * src_pitch).cast();
            let d = dst.wrapping_offset(p * dst_pitch + q).cast();
            // SAFETY: the block is inside the matrix, its elements have 4 bytes, and the CPU
            // supports AVX2.
            unsafe { avx2::transpose8(s, src_pitch, d, dst_pitch) };
        }
        return;
    }
    for p in 0..dims[0] as isize {
        for q in 0..dims[1] as isize {
            // SAFETY: the block is inside the matrix.
            unsafe { *dst.offset(p * dst_pitch + q) = *src.offset(p + q * src_pitch) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Transposes 8 by 8 elements.
    ///
    /// # Safety
    /// The elements must be readable and writable.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn transpose8(src: *const f32, src_pitch: isize, dst: *mut f32, dst_pitch: isize) {
        // SAFETY: the caller guarantees eight rows of eight elements.
        let row = |i: isize| unsafe { _mm256_loadu_ps(src.offset(i * src_pitch)) };
        let r = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        // Interleave pairs of rows, then pairs of pairs, then combine the halves.
        let pairs = |a: usize| (_mm256_unpacklo_ps(r[a], r[a + 1]), _mm256_unpackhi_ps(r[a], r[a + 1]));
        let ((a0, a1), (b0, b1), (c0, c1), (d0, d1)) = (pairs(0), pairs(2), pairs(4), pairs(6));
        let low = |a, b| _mm256_shuffle_ps::<0x44>(a, b);
        let high = |a, b| _mm256_shuffle_ps::<0xee>(a, b);
        let top = [low(a0, b0), high(a0, b0), low(a1, b1), high(a1, b1)];
        let bottom = [low(c0, d0), high(c0, d0), low(c1, d1), high(c1, d1)];
        for i in 0..4 {
            let first = _mm256_permute2f128_ps::<0x20>(top[i], bottom[i]);
            let second = _mm256_permute2f128_ps::<0x31>(top[i], bottom[i]);
            // SAFETY: the caller guarantees eight rows of eight elements.
            unsafe {
                _mm256_storeu_ps(dst.offset(i as isize * dst_pitch), first);
                _mm256_storeu_ps(dst.offset((i as isize + 4) * dst_pitch), second);
            }
        }
    }
}
