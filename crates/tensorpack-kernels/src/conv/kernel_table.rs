//! The micro-kernels of convolutions for each instruction set.

use std::arch::x86_64::{__m256, __m512};

use super::conv_k3::{self, ConvK3Fn};
use super::filter_grad_k3::{self, FilterGradK3Fn};
use super::strided_rows_tile::{self, StridedRowsTile};
use super::winograd_stride2::fast as winograd_stride2;
use super::winograd_transform::transforms::{self, Transforms};
use crate::gemm::Bias;
use crate::gemm::amx::Amx;
use crate::gemm::microkernel::TileKernels;
use crate::simd::{Pairs512, Simd};

/// The convolution micro-kernels written for one vector type.
///
/// # Safety
/// The kernels need a CPU that supports the instructions of the type.
pub(crate) trait ConvKernels: TileKernels<Element = f32> {
    /// Maximum number of output pixels that [`conv_k3`] computes at once, with one and with two
    /// vectors of channels; 0 if there are too few registers for any.
    const MAX_PIXELS: [usize; 2];
    /// Maximum number of input channels that [`filter_grad_k3`] computes at once, likewise.
    const MAX_CHANNELS: [usize; 2];
    /// Maximum number of pixels that [`strided_rows_tile`] computes at once.
    const MAX_STRIDED_ROWS: usize;
    /// The Winograd transforms.
    const TRANSFORMS: &'static Transforms;
    /// Those for 4x4 filters with stride 2.
    const STRIDE2: &'static winograd_stride2::Transforms;

    /// Applies the bias epilogue to rows of `cols` columns, right after they were written.
    ///
    /// # Safety
    /// The CPU supports the instructions of the type, and the rows of `c` and the columns of the
    /// bias are valid.
    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>);
    /// Computes a tile of 1 to [`ConvKernels::MAX_STRIDED_ROWS`] pixels; see [`strided_rows_tile`].
    ///
    /// # Safety
    /// Same as [`Tile::run`](crate::gemm::microkernel::Tile::run), for every pixel.
    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize);
    /// Returns the kernel for `pixels` pixels and `vectors` vectors of channels; see [`conv_k3`].
    fn conv_k3(pixels: usize, vectors: usize) -> ConvK3Fn;
    /// Returns the kernel for `channels` input channels and `vectors` vectors of output channels;
    /// see [`filter_grad_k3`].
    fn filter_grad_k3(channels: usize, vectors: usize) -> FilterGradK3Fn;
}

impl ConvKernels for __m512 {
    const MAX_PIXELS: [usize; 2] = [conv_k3::AVX512_ONE.len(), conv_k3::AVX512_TWO.len()];
    const MAX_CHANNELS: [usize; 2] = [filter_grad_k3::AVX512_ONE.len(), filter_grad_k3::AVX512_TWO.len()];
    const MAX_STRIDED_ROWS: usize = strided_rows_tile::AVX512[0].len();
    const TRANSFORMS: &'static Transforms = &transforms::AVX512;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX512;

    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn avx512(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
            // SAFETY: guaranteed by the caller.
            unsafe { add_bias::<__m512>(c, c_row, rows, cols, bias) }
        }
        // SAFETY: guaranteed by the caller, which has checked that the CPU has the instructions.
        unsafe { avx512(c, c_row, rows, cols, bias) }
    }

    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize) {
        let vectors = rows.tile.cols.div_ceil(<__m512 as TileKernels>::LANES);
        // SAFETY: guaranteed by the caller.
        unsafe { strided_rows_tile::AVX512[vectors - 1][pixels - 1](rows) }
    }

    fn conv_k3(pixels: usize, vectors: usize) -> ConvK3Fn {
        match vectors {
            1 => conv_k3::AVX512_ONE[pixels - 1],
            _ => conv_k3::AVX512_TWO[pixels - 1],
        }
    }

    fn filter_grad_k3(channels: usize, vectors: usize) -> FilterGradK3Fn {
        match vectors {
            1 => filter_grad_k3::AVX512_ONE[channels - 1],
            _ => filter_grad_k3::AVX512_TWO[channels - 1],
        }
    }
}

impl ConvKernels for Pairs512 {
    const MAX_PIXELS: [usize; 2] = <__m512 as ConvKernels>::MAX_PIXELS;
    const MAX_CHANNELS: [usize; 2] = <__m512 as ConvKernels>::MAX_CHANNELS;
    const MAX_STRIDED_ROWS: usize = strided_rows_tile::AVX512_BF16[0].len();
    // Never used: `Bf16Contract` asks for direct convolutions, because transformed tiles would have
    // to be rounded to bf16 again.
    const TRANSFORMS: &'static Transforms = &transforms::AVX512;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX512;

    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        // SAFETY: guaranteed by the caller; sums are f32.
        unsafe { __m512::add_bias(c, c_row, rows, cols, bias) }
    }

    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize) {
        let vectors = rows.tile.cols.div_ceil(<Pairs512 as TileKernels>::LANES);
        // SAFETY: guaranteed by the caller.
        unsafe { strided_rows_tile::AVX512_BF16[vectors - 1][pixels - 1](rows) }
    }

    fn conv_k3(pixels: usize, vectors: usize) -> ConvK3Fn {
        match vectors {
            1 => conv_k3::AVX512_BF16_ONE[pixels - 1],
            _ => conv_k3::AVX512_BF16_TWO[pixels - 1],
        }
    }

    fn filter_grad_k3(channels: usize, vectors: usize) -> FilterGradK3Fn {
        match vectors {
            1 => filter_grad_k3::AVX512_BF16_ONE[channels - 1],
            _ => filter_grad_k3::AVX512_BF16_TWO[channels - 1],
        }
    }
}

impl ConvKernels for Amx {
    // Tiles multiply more than the special kernels do.
    const MAX_PIXELS: [usize; 2] = [0, 0];
    const MAX_CHANNELS: [usize; 2] = [0, 0];
    const MAX_STRIDED_ROWS: usize = Amx::MAX_ROWS;
    // Never used, as above.
    const TRANSFORMS: &'static Transforms = &transforms::AVX512;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX512;

    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        // SAFETY: guaranteed by the caller; every CPU with AMX has AVX-512.
        unsafe { __m512::add_bias(c, c_row, rows, cols, bias) }
    }

    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { strided_rows_tile::amx(rows, pixels) }
    }

    fn conv_k3(_: usize, _: usize) -> ConvK3Fn {
        unreachable!("MAX_PIXELS is 0, so no caller asks for this kernel")
    }

    fn filter_grad_k3(_: usize, _: usize) -> FilterGradK3Fn {
        unreachable!("MAX_CHANNELS is 0, so no caller asks for this kernel")
    }
}

impl ConvKernels for __m256 {
    const MAX_PIXELS: [usize; 2] = [0, 0];
    const MAX_CHANNELS: [usize; 2] = [0, 0];
    const MAX_STRIDED_ROWS: usize = strided_rows_tile::AVX2[0].len();
    const TRANSFORMS: &'static Transforms = &transforms::AVX2;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX2;

    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
            // SAFETY: guaranteed by the caller.
            unsafe { add_bias::<__m256>(c, c_row, rows, cols, bias) }
        }
        // SAFETY: guaranteed by the caller, which has checked that the CPU has the instructions.
        unsafe { avx2(c, c_row, rows, cols, bias) }
    }

    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize) {
        let vectors = rows.tile.cols.div_ceil(<__m256 as TileKernels>::LANES);
        // SAFETY: guaranteed by the caller.
        unsafe { strided_rows_tile::AVX2[vectors - 1][pixels - 1](rows) }
    }

    fn conv_k3(_: usize, _: usize) -> ConvK3Fn {
        unreachable!("MAX_PIXELS is 0, so no caller asks for this kernel")
    }

    fn filter_grad_k3(_: usize, _: usize) -> FilterGradK3Fn {
        unreachable!("MAX_CHANNELS is 0, so no caller asks for this kernel")
    }
}

/// Adds the bias, if there is one, and then applies ReLU, if requested.
///
/// # Safety
/// The CPU supports the instructions of `V`, and the rows of `c` and the columns of the bias are
/// valid.
#[inline(always)]
unsafe fn add_bias<V: Simd<Element = f32>>(
    c: *mut f32,
    c_row: usize,
    rows: usize,
    cols: usize,
    bias: Bias<f32>,
) {
    for from in (0..cols).step_by(V::LANES) {
        let lanes = (cols - from).min(V::LANES);
        // SAFETY: guaranteed by the caller.
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
