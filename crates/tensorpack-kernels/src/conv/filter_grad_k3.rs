//! The micro-kernel of filter gradients with three taps in a row at stride 1.
//!
//! Each input element is multiplied by the gradients of the three outputs that read it. Those
//! gradients stay in registers while the kernel moves along the row, so it needs a third of the
//! loads of the general tile kernel.

use std::arch::x86_64::__m512;

use crate::conv::conv_k3::TAPS;
use crate::conv::kernel_table::ConvKernels;
use crate::gemm::microkernel::write_rows;
use crate::partition;
use crate::simd::{Pairs512, Simd};

/// A sum over pixels of some images, for three taps, a run of input channels and up to two vectors
/// of output channels; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct FilterGradK3<T = f32> {
    pub(crate) images: usize,
    pub(crate) rows: usize,
    /// Outputs in a row, at least 2; the image has two more pixels there.
    pub(crate) pixels: usize,
    pub(crate) a: *const T,
    pub(crate) a_pixel: usize,
    pub(crate) a_row: usize,
    pub(crate) a_image: usize,
    /// The gradient, readable in whole vectors, even past `cols`.
    pub(crate) b: *const T,
    pub(crate) b_pixel: usize,
    pub(crate) b_row: usize,
    pub(crate) b_image: usize,
    pub(crate) c: *mut T,
    /// The strides from input channel to input channel, and from tap to tap.
    pub(crate) c_channel: usize,
    pub(crate) c_tap: usize,
    /// Columns of `c`, at least 1.
    pub(crate) cols: usize,
    /// Whether to add to `c` instead of overwriting it.
    pub(crate) add: bool,
}

/// The kernel for a fixed number of channels and vectors.
pub(crate) type FilterGradK3Fn<T = f32> = unsafe fn(&FilterGradK3<T>);

impl<T: Copy> FilterGradK3<T> {
    /// Computes `channels` input channels, in nearly equal runs.
    ///
    /// # Safety
    /// The CPU supports the instructions of `V`, and `V::MAX_CHANNELS` is not 0; `cols` is at most
    /// two vectors; every element that the sizes and strides reach is valid, and no other thread
    /// accesses those of `c`.
    pub(crate) unsafe fn run<V: ConvKernels<Element = T>>(&self, channels: usize) {
        let vectors = self.cols.div_ceil(V::LANES);
        for part in partition::parts(channels, V::MAX_CHANNELS[vectors - 1]) {
            let mut sum = *self;
            sum.a = self.a.wrapping_add(part.start);
            sum.c = self.c.wrapping_add(part.start * self.c_channel);
            // SAFETY: guaranteed by the caller; each kernel of the table touches only the channels
            // of its part.
            unsafe { V::filter_grad_k3(part.len(), vectors)(&sum) }
        }
    }
}

/// The sums of each tap, and the gradients of the outputs under the taps: `under[t]` belongs to tap
/// `t`.
struct Sums<V, const CHANNELS: usize, const VECTORS: usize> {
    taps: [[[V; VECTORS]; CHANNELS]; TAPS],
    under: [[V; VECTORS]; TAPS],
}

impl<V: Simd<Element = f32>, const CHANNELS: usize, const VECTORS: usize> Sums<V, CHANNELS, VECTORS> {
    /// Accumulates one pixel of the image at `a`, under taps `FIRST..LAST`; with tap 0 the next
    /// output's gradient is loaded from `b`.
    #[inline(always)]
    unsafe fn pixel<const FIRST: usize, const LAST: usize>(&mut self, a: *const f32, b: *const f32) {
        // SAFETY: the caller guarantees the pixel, and the gradient if there is one.
        unsafe {
            self.under[2] = self.under[1];
            self.under[1] = self.under[0];
            if FIRST == 0 {
                for (v, under) in self.under[0].iter_mut().enumerate() {
                    *under = V::load(b.add(v * V::LANES));
                }
            }
            // Unrolled by hand, as in a tile.
            macro_rules! channels {
                ($($i:literal)*) => {$(
                    if $i < CHANNELS {
                        let x = V::splat(a.add($i));
                        for t in FIRST..LAST {
                            for v in 0..VECTORS {
                                self.taps[t][$i][v] = self.taps[t][$i][v].fma(x, self.under[t][v]);
                            }
                        }
                    }
                )*};
            }
            channels!(0 1 2 3 4 5 6 7);
        }
    }
}

#[inline(always)]
unsafe fn filter_grad_k3<V: Simd<Element = f32>, const CHANNELS: usize, const VECTORS: usize>(
    s: &FilterGradK3,
) {
    // SAFETY: the caller guarantees the instructions and every element that sizes and strides
    // reach.
    unsafe {
        let mut sums = Sums::<V, CHANNELS, VECTORS> {
            taps: [[[V::zero(); VECTORS]; CHANNELS]; TAPS],
            under: [[V::zero(); VECTORS]; TAPS],
        };
        for image in 0..s.images {
            for row in 0..s.rows {
                let mut a = s.a.wrapping_add(image * s.a_image + row * s.a_row);
                let mut b = s.b.wrapping_add(image * s.b_image + row * s.b_row);
                // The first two pixels are under fewer taps, as are the last two.
                sums.pixel::<0, 1>(a, b);
                a = a.wrapping_add(s.a_pixel);
                b = b.wrapping_add(s.b_pixel);
                sums.pixel::<0, 2>(a, b);
                for _ in 2..s.pixels {
                    a = a.wrapping_add(s.a_pixel);
                    b = b.wrapping_add(s.b_pixel);
                    sums.pixel::<0, 3>(a, b);
                }
                a = a.wrapping_add(s.a_pixel);
                sums.pixel::<1, 3>(a, b);
                a = a.wrapping_add(s.a_pixel);
                sums.pixel::<2, 3>(a, b);
            }
        }
        for (t, sums) in sums.taps.iter().enumerate() {
            write_rows(sums, s.c.wrapping_add(t * s.c_tap), s.c_channel, s.cols, s.add);
        }
    }
}

/// # Safety
/// Same as [`FilterGradK3::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const CHANNELS: usize, const VECTORS: usize>(s: &FilterGradK3) {
    // SAFETY: guaranteed by the caller.
    unsafe { filter_grad_k3::<__m512, CHANNELS, VECTORS>(s) }
}

/// # Safety
/// Same as [`FilterGradK3::run`].
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_bf16<const CHANNELS: usize, const VECTORS: usize>(s: &FilterGradK3) {
    // SAFETY: guaranteed by the caller.
    unsafe { filter_grad_k3::<Pairs512, CHANNELS, VECTORS>(s) }
}

/// Builds the table of a kernel for these numbers of input channels.
macro_rules! table {
    ($kernel:ident, $vectors:literal: $($channels:literal)*) => {
        [$($kernel::<$channels, $vectors>),*]
    };
}

/// Tables of kernels by number of input channels, for one and for two vectors: 24 sums, the
/// gradients of three outputs and one input element fill the registers.
pub(crate) static AVX512_ONE: [FilterGradK3Fn; 8] = table!(avx512, 1: 1 2 3 4 5 6 7 8);
pub(crate) static AVX512_TWO: [FilterGradK3Fn; 4] = table!(avx512, 2: 1 2 3 4);
pub(crate) static AVX512_BF16_ONE: [FilterGradK3Fn; 8] = table!(avx512_bf16, 1: 1 2 3 4 5 6 7 8);
pub(crate) static AVX512_BF16_TWO: [FilterGradK3Fn; 4] = table!(avx512_bf16, 2: 1 2 3 4);
