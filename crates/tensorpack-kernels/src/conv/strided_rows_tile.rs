//! The micro-kernel of direct convolutions whose output rows are too short to fill a tile.
//!
//! It works like the general tile kernel, but every row of the tile has its own address: any pixel
//! of any image. So the weights in the L1 cache serve many small images at once.

use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};
use std::ptr;

use crate::conv::kernel_table::ConvKernels;
use crate::gemm::amx::{Amx, Rows};
use crate::gemm::microkernel::{Tile, hide_addresses, write_rows};
use crate::partition;
use crate::simd::{Pairs256, Pairs512, Simd};

/// The most pixels of any instruction set.
const MAX_PIXELS: usize = 32;

/// A tile in which each row has its own input and output address.
#[derive(Clone, Copy)]
pub(crate) struct StridedRowsTile<'a, T = f32> {
    /// The sums; its `a`, `c` and row strides are not used.
    pub(crate) tile: &'a Tile<T>,
    /// The first input element of each pixel; the steps of a sum are contiguous.
    a: [*const T; MAX_PIXELS],
    /// The output address of each pixel.
    c: [*mut T; MAX_PIXELS],
}

/// The kernel for a fixed number of pixels and vectors.
pub(crate) type StridedRowsFn<T = f32> = unsafe fn(&StridedRowsTile<'_, T>);

impl<T: Copy> StridedRowsTile<'_, T> {
    /// Computes the sums of `tile` for `count` pixels, in nearly equal tiles.
    ///
    /// # Safety
    /// Same as [`Tile::run`], for every pixel.
    pub(crate) unsafe fn run<V: ConvKernels<Element = T>>(
        tile: &Tile<T>,
        mut pixels: impl Iterator<Item = (*const T, *mut T)>,
        count: usize,
    ) {
        let mut rows =
            StridedRowsTile { tile, a: [ptr::null(); MAX_PIXELS], c: [ptr::null_mut(); MAX_PIXELS] };
        for part in partition::parts(count, V::MAX_STRIDED_ROWS).filter(|part| !part.is_empty()) {
            for (p, (a, c)) in pixels.by_ref().take(part.len()).enumerate() {
                (rows.a[p], rows.c[p]) = (a, c);
            }
            // SAFETY: guaranteed by the caller; the kernel touches only the pixels of this part.
            unsafe { V::run_strided_rows(&rows, part.len()) }
        }
    }
}

/// Steps between two updates of the addresses.
const UNROLL: usize = 4;

/// One step: `acc[pixel] += a[pixel] * b`.
#[inline(always)]
unsafe fn step<V: Simd, const PIXELS: usize, const VECTORS: usize>(
    acc: &mut [[V; VECTORS]; PIXELS],
    a: &[*const V::Element; PIXELS],
    offset: usize,
    b: *const V::Element,
) {
    // SAFETY: the caller guarantees that the sums reach this step of every pixel, and a whole
    // number of vectors of `b`.
    unsafe {
        let mut bv = [V::zero(); VECTORS];
        for (v, bv) in bv.iter_mut().enumerate() {
            *bv = V::load(b.add(v * V::LANES));
        }
        // Unrolled by hand, as in a tile.
        macro_rules! pixels {
            ($($p:literal)*) => {$(
                if $p < PIXELS {
                    let av = V::splat(a[$p].add(offset));
                    for v in 0..VECTORS {
                        acc[$p][v] = acc[$p][v].fma(av, bv[v]);
                    }
                }
            )*};
        }
        pixels!(0 1 2 3 4 5 6 7 8 9 10 11);
    }
}

#[inline(always)]
unsafe fn strided_rows<V: Simd, const PIXELS: usize, const VECTORS: usize>(
    s: &StridedRowsTile<'_, V::Element>,
) {
    let t = s.tile;
    // SAFETY: the caller guarantees the instructions and every element that sizes and strides
    // reach.
    unsafe {
        let mut acc = [[V::zero(); VECTORS]; PIXELS];
        for image in 0..t.images {
            for segment in 0..t.segments {
                let skip = image * t.a_image + segment * t.a_segment;
                let mut a: [*const V::Element; PIXELS] = std::array::from_fn(|p| s.a[p].wrapping_add(skip));
                let mut b = t.b.wrapping_add(image * t.b_image + segment * t.b_segment);
                let mut left = t.steps;
                while left >= UNROLL {
                    for u in 0..UNROLL {
                        hide_addresses(&mut a);
                        step::<V, PIXELS, VECTORS>(&mut acc, &a, u, b);
                        b = b.wrapping_add(t.b_step);
                    }
                    for a in &mut a {
                        *a = a.wrapping_add(UNROLL);
                    }
                    left -= UNROLL;
                }
                for u in 0..left {
                    step::<V, PIXELS, VECTORS>(&mut acc, &a, u, b);
                    b = b.wrapping_add(t.b_step);
                }
            }
        }
        for (acc, &c) in acc.iter().zip(&s.c) {
            write_rows(&[*acc], c, 0, t.cols, t.add);
        }
    }
}

/// The kernel of AMX for the first `pixels` pixels.
///
/// # Safety
/// Same as [`Tile::run`], for every pixel.
pub(crate) unsafe fn amx(s: &StridedRowsTile<'_>, pixels: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { Amx::run_rows(s.tile, Rows { a: &s.a[..pixels], c: &s.c[..pixels] }) }
}

/// # Safety
/// Same as [`Tile::run`], for every pixel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const PIXELS: usize, const VECTORS: usize>(s: &StridedRowsTile<'_>) {
    // One wide vector is split into two half vectors, as in a tile.
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if s.tile.cols > 8 => strided_rows::<__m256, PIXELS, 2>(s),
            1 => strided_rows::<__m256, PIXELS, 1>(s),
            _ => strided_rows::<__m512, PIXELS, VECTORS>(s),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`], for every pixel.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_bf16<const PIXELS: usize, const VECTORS: usize>(s: &StridedRowsTile<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if s.tile.cols > 8 => strided_rows::<Pairs256, PIXELS, 2>(s),
            1 => strided_rows::<Pairs256, PIXELS, 1>(s),
            _ => strided_rows::<Pairs512, PIXELS, VECTORS>(s),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`], for every pixel.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const PIXELS: usize, const VECTORS: usize>(s: &StridedRowsTile<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe { strided_rows::<__m256, PIXELS, VECTORS>(s) }
}

/// # Safety
/// Same as [`Tile::run`], for every pixel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_f64<const PIXELS: usize, const VECTORS: usize>(s: &StridedRowsTile<'_, f64>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if s.tile.cols > 4 => strided_rows::<__m256d, PIXELS, 2>(s),
            1 => strided_rows::<__m256d, PIXELS, 1>(s),
            _ => strided_rows::<__m512d, PIXELS, VECTORS>(s),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`], for every pixel.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_f64<const PIXELS: usize, const VECTORS: usize>(s: &StridedRowsTile<'_, f64>) {
    // SAFETY: guaranteed by the caller.
    unsafe { strided_rows::<__m256d, PIXELS, VECTORS>(s) }
}

/// Kernels by vectors and pixels. An address per pixel, the address of the weights and the step
/// counter fill the general-purpose registers; the sums take no more vector registers than in a
/// tile.
macro_rules! table {
    ($kernel:ident: $($pixels:literal)*) => {
        [[$($kernel::<$pixels, 1> as StridedRowsFn<_>),*], [$($kernel::<$pixels, 2>),*]]
    };
}
pub(crate) static AVX512: [[StridedRowsFn; 12]; 2] = table!(avx512: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(crate) static AVX512_BF16: [[StridedRowsFn; 12]; 2] = table!(avx512_bf16: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(crate) static AVX2: [[StridedRowsFn; 6]; 2] = table!(avx2: 1 2 3 4 5 6);
pub(crate) static AVX512_F64: [[StridedRowsFn<f64>; 12]; 2] = table!(avx512_f64: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(crate) static AVX2_F64: [[StridedRowsFn<f64>; 6]; 2] = table!(avx2_f64: 1 2 3 4 5 6);
