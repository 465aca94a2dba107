//! The micro-kernel of direct convolutions with three taps in a row at stride 1, the most common
//! ones.
//!
//! Each input element is loaded once and multiplied by all three taps. The general tile kernel
//! loads it once per tap, and with few output channels the loads, not the multiplications, would
//! limit the speed.

use std::arch::x86_64::__m512;

use crate::conv::kernel_table::ConvKernels;
use crate::gemm::microkernel::{hide_addresses, write_rows};
use crate::partition;
use crate::simd::{Pairs512, Simd};

/// Taps in a row of the filter.
pub(crate) const TAPS: usize = 3;

/// A sum over some rows of the filter, for a run of pixels and up to two vectors of channels;
/// strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct ConvK3<T = f32> {
    /// Rows of the filter.
    pub(crate) rows: usize,
    /// Input channels to sum over.
    pub(crate) channels: usize,
    /// The first element of the first pixel.
    pub(crate) a: *const T,
    pub(crate) a_pixel: usize,
    pub(crate) a_row: usize,
    /// The weights of the first channel: whole vectors, even past `cols`.
    pub(crate) b: *const T,
    /// The strides from channel to channel, from tap to tap and from row to row of the filter.
    pub(crate) b_channel: usize,
    pub(crate) b_tap: usize,
    pub(crate) b_row: usize,
    pub(crate) c: *mut T,
    pub(crate) c_pixel: usize,
    /// Columns of `c`, at least 1.
    pub(crate) cols: usize,
    /// Whether to add to `c` instead of overwriting it.
    pub(crate) add: bool,
}

/// The kernel for a fixed number of pixels and vectors.
pub(crate) type ConvK3Fn<T = f32> = unsafe fn(&ConvK3<T>);

impl<T: Copy> ConvK3<T> {
    /// Computes `pixels` pixels, in nearly equal runs.
    ///
    /// # Safety
    /// The CPU supports the instructions of `V`, and `V::MAX_PIXELS` is not 0; `cols` is at most
    /// two vectors; every element that the sizes and strides reach is valid, two pixels beyond the
    /// last included, and no other thread accesses those of `c`.
    pub(crate) unsafe fn run<V: ConvKernels<Element = T>>(&self, pixels: usize) {
        let vectors = self.cols.div_ceil(V::LANES);
        if pixels == 0 {
            return;
        }
        for part in partition::parts(pixels, V::MAX_PIXELS[vectors - 1]) {
            let mut run = *self;
            run.a = self.a.wrapping_add(part.start * self.a_pixel);
            run.c = self.c.wrapping_add(part.start * self.c_pixel);
            // SAFETY: guaranteed by the caller; each kernel of the table touches only the pixels of
            // its part.
            unsafe { V::conv_k3(part.len(), vectors)(&run) }
        }
    }
}

#[inline(always)]
unsafe fn conv_k3<V: Simd<Element = f32>, const PIXELS: usize, const VECTORS: usize>(s: &ConvK3) {
    // SAFETY: the caller guarantees the instructions and every element that sizes and strides
    // reach.
    unsafe {
        let mut acc = [[V::zero(); VECTORS]; PIXELS];
        for row in 0..s.rows {
            let start = s.a.wrapping_add(row * s.a_row);
            // One address register for every third pixel, as for the rows of a tile.
            let mut a = [start; 6];
            for (i, a) in a.iter_mut().enumerate() {
                *a = start.wrapping_add(3 * i * s.a_pixel);
            }
            let mut b = s.b.wrapping_add(row * s.b_row);
            for _ in 0..s.channels {
                hide_addresses(&mut a[..(PIXELS + TAPS - 1).div_ceil(3)]);
                let mut w = [[V::zero(); VECTORS]; TAPS];
                for (t, w) in w.iter_mut().enumerate() {
                    for (v, w) in w.iter_mut().enumerate() {
                        *w = V::load(b.add(t * s.b_tap + v * V::LANES));
                    }
                }
                // Pixel `p` is under tap `t` of output `p - t`. Unrolled by hand, as in a tile.
                macro_rules! pixels {
                    ($($p:literal)*) => {$(
                        if $p < PIXELS + TAPS - 1 {
                            let x = V::splat(a[$p / 3].wrapping_add($p % 3 * s.a_pixel));
                            for t in 0..TAPS {
                                if t <= $p && $p - t < PIXELS {
                                    for v in 0..VECTORS {
                                        acc[$p - t][v] = acc[$p - t][v].fma(x, w[t][v]);
                                    }
                                }
                            }
                        }
                    )*};
                }
                pixels!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17);
                for a in &mut a {
                    *a = a.wrapping_add(1);
                }
                b = b.wrapping_add(s.b_channel);
            }
        }
        write_rows(&acc, s.c, s.c_pixel, s.cols, s.add);
    }
}

/// # Safety
/// Same as [`ConvK3::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const PIXELS: usize, const VECTORS: usize>(s: &ConvK3) {
    // SAFETY: guaranteed by the caller.
    unsafe { conv_k3::<__m512, PIXELS, VECTORS>(s) }
}

/// # Safety
/// Same as [`ConvK3::run`].
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_bf16<const PIXELS: usize, const VECTORS: usize>(s: &ConvK3) {
    // SAFETY: guaranteed by the caller.
    unsafe { conv_k3::<Pairs512, PIXELS, VECTORS>(s) }
}

/// Builds the table of a kernel for these numbers of pixels.
macro_rules! table {
    ($kernel:ident, $vectors:literal: $($pixels:literal)*) => {
        [$($kernel::<$pixels, $vectors>),*]
    };
}

/// Tables of kernels by number of pixels, for one and for two vectors. The latter hold 24 sums, 6
/// weights and one input element: 31 of 32 registers.
pub(crate) static AVX512_ONE: [ConvK3Fn; 16] = table!(avx512, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
pub(crate) static AVX512_TWO: [ConvK3Fn; 12] = table!(avx512, 2: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(crate) static AVX512_BF16_ONE: [ConvK3Fn; 16] =
    table!(avx512_bf16, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
pub(crate) static AVX512_BF16_TWO: [ConvK3Fn; 12] = table!(avx512_bf16, 2: 1 2 3 4 5 6 7 8 9 10 11 12);
