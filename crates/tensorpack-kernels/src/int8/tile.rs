//! The micro-kernels of integer products: up to [`ROWS`] rows by one panel of [`PANEL`] columns.
//!
//! Weights are signed and stored in groups of four terms: `[taps, terms / 4, PANEL, 4]`.
//! Activations are unsigned, with 128 for zero, since `vpdpbusd` multiplies unsigned by signed
//! bytes. What the offset adds to a sum depends on the column alone.

use crate::Isa;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, __m512i, __mmask16, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi16,
    _mm256_srai_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_sub_epi32, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_sub_epi32,
};

/// Columns of a panel.
pub(super) const PANEL: usize = 64;
/// Maximum number of rows of a tile: with four vectors of columns each, their sums fill the
/// registers.
pub(super) const ROWS: usize = 6;
/// Terms that one instruction adds up.
pub(super) const GROUP: usize = 4;

/// A part of the output: some rows by one panel.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// The number of rows, at most [`ROWS`].
    pub(super) rows: usize,
    /// The activations of each tap: a pointer for each of its rows, to `groups * GROUP` bytes.
    pub(super) lhs: &'a [*const u8],
    /// Groups of terms of each tap.
    pub(super) groups: usize,
    /// The panel of weights.
    pub(super) weights: *const i8,
    /// What is subtracted from the sums of each column of the panel.
    pub(super) offsets: *const i32,
    /// The first element of the output.
    pub(super) out: *mut f32,
    /// Elements from one row of the output to the next.
    pub(super) stride: usize,
    /// Columns of the output, at most [`PANEL`].
    pub(super) cols: usize,
}

impl Tile<'_> {
    /// Computes the tile. The result is the same for every instruction set: sums of integers are
    /// exact, and each is rounded to f32 once.
    ///
    /// # Safety
    /// The CPU supports `isa`. `lhs` has `rows` pointers for each tap, each valid for its bytes; the
    /// panel, the offsets and the output are valid for the sizes of the tile, and no other thread
    /// accesses this part of the output.
    pub(super) unsafe fn run(&self, isa: Isa) {
        // SAFETY: guaranteed by the caller; VNNI is detected.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => match self.rows {
                    1 => self.vnni::<1>(),
                    2 => self.vnni::<2>(),
                    3 => self.vnni::<3>(),
                    4 => self.vnni::<4>(),
                    5 => self.vnni::<5>(),
                    _ => self.vnni::<ROWS>(),
                },
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx2 => self.avx2(),
                _ => self.plain(),
            }
        }
    }

    /// Reference loops.
    ///
    /// # Safety
    /// Same as [`Tile::run`].
    unsafe fn plain(&self) {
        for row in 0..self.rows {
            let mut sums = [0i32; PANEL];
            let mut weights = self.weights;
            for tap in self.lhs.chunks_exact(self.rows) {
                for group in 0..self.groups {
                    // SAFETY: guaranteed by the caller.
                    let (x, w) = unsafe {
                        let x = tap[row].add(group * GROUP).cast::<[u8; GROUP]>().read();
                        (x, std::slice::from_raw_parts(weights.cast::<[i8; GROUP]>(), PANEL))
                    };
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum += (0..GROUP).map(|i| i32::from(x[i]) * i32::from(w[i])).sum::<i32>();
                    }
                    weights = weights.wrapping_add(PANEL * GROUP);
                }
            }
            // SAFETY: guaranteed by the caller.
            unsafe { self.store(row, 0, &sums) }
        }
    }

    /// Writes sums of a row from column `first` on, as far as there are columns.
    ///
    /// # Safety
    /// Same as [`Tile::run`].
    unsafe fn store(&self, row: usize, first: usize, sums: &[i32]) {
        for (i, sum) in sums.iter().enumerate().take(self.cols.saturating_sub(first)) {
            // SAFETY: the column is one of the tile's.
            unsafe {
                let value = (sum - *self.offsets.add(first + i)) as f32;
                self.out.add(row * self.stride + first + i).write(value);
            }
        }
    }

    /// Products of bytes as pairs of 16-bit integers: `vpmaddubsw` would saturate.
    ///
    /// # Safety
    /// Same as [`Tile::run`]; the CPU has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(&self) {
        /// Columns of a vector.
        const LANES: usize = 8;
        let low_bytes = _mm256_set1_epi16(0xff);
        for first in (0..self.cols).step_by(2 * LANES) {
            for row in 0..self.rows {
                let mut sums = [_mm256_setzero_si256(); 2];
                let mut weights = self.weights.wrapping_add(first * GROUP);
                for tap in self.lhs.chunks_exact(self.rows) {
                    for group in 0..self.groups {
                        // SAFETY: guaranteed by the caller; a panel has all of its columns.
                        let (x, w): (__m256i, [__m256i; 2]) = unsafe {
                            let x = tap[row].add(group * GROUP).cast::<i32>().read_unaligned();
                            let w = [0, LANES * GROUP].map(|i| _mm256_loadu_si256(weights.add(i).cast()));
                            (_mm256_set1_epi32(x), w)
                        };
                        let (even_x, odd_x) = (_mm256_and_si256(x, low_bytes), _mm256_srli_epi16::<8>(x));
                        for (sum, w) in sums.iter_mut().zip(w) {
                            let even_w = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w));
                            let odd_w = _mm256_srai_epi16::<8>(w);
                            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(even_x, even_w));
                            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(odd_x, odd_w));
                        }
                        weights = weights.wrapping_add(PANEL * GROUP);
                    }
                }
                for (i, sum) in sums.into_iter().enumerate() {
                    let at = first + i * LANES;
                    // SAFETY: guaranteed by the caller; the vector is inside the columns, or its
                    // elements are written one by one.
                    unsafe {
                        if at + LANES <= self.cols {
                            let offsets = _mm256_loadu_si256(self.offsets.add(at).cast());
                            let value = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, offsets));
                            _mm256_storeu_ps(self.out.add(row * self.stride + at), value);
                        } else {
                            self.store(row, at, &std::mem::transmute::<__m256i, [i32; LANES]>(sum));
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// Same as [`Tile::run`]; the CPU has AVX-512 VNNI, and the tile has `R` rows.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn vnni<const R: usize>(&self) {
        /// Columns of a vector.
        const LANES: usize = 16;
        const VECTORS: usize = PANEL / LANES;
        let mut sums = [[_mm512_setzero_si512(); VECTORS]; R];
        let mut weights = self.weights;
        for tap in self.lhs.chunks_exact(R) {
            let rows: [*const u8; R] = std::array::from_fn(|row| tap[row]);
            for group in 0..self.groups {
                // SAFETY: guaranteed by the caller.
                let w: [__m512i; VECTORS] = std::array::from_fn(|v| unsafe {
                    _mm512_loadu_si512(weights.add(v * LANES * GROUP).cast())
                });
                for (row, sums) in rows.iter().zip(&mut sums) {
                    // SAFETY: as above.
                    let x = unsafe { row.add(group * GROUP).cast::<i32>().read_unaligned() };
                    let x = _mm512_set1_epi32(x);
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = _mm512_dpbusd_epi32(*sum, x, w);
                    }
                }
                weights = weights.wrapping_add(PANEL * GROUP);
            }
        }
        for (v, first) in (0..self.cols).step_by(LANES).enumerate() {
            let columns = (self.cols - first).min(LANES);
            let mask = (u32::MAX >> (u32::BITS - columns as u32)) as __mmask16;
            // SAFETY: guaranteed by the caller; the mask leaves out columns that do not exist.
            unsafe {
                let offsets = _mm512_loadu_si512(self.offsets.add(first).cast());
                for (row, sums) in sums.iter().enumerate() {
                    let value = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[v], offsets));
                    _mm512_mask_storeu_ps(self.out.add(row * self.stride + first), mask, value);
                }
            }
        }
    }
}
