//! The micro-kernels of convolutions for each instruction set and element type.

use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

use super::col2im::fast as col2im;
use super::conv_k3::{self, ConvK3Fn};
use super::filter_grad_k3::{self, FilterGradK3Fn};
use super::strided_rows_tile::{self, StridedRowsTile};
use super::winograd_stride2::fast as winograd_stride2;
use super::winograd_transform::{self, TransformTable};
use crate::gemm::Bias;
use crate::gemm::amx::Amx;
use crate::gemm::microkernel::TileKernels;
use crate::gemm::pack::PackElement;
use crate::simd::{Pairs512, Simd};

/// The micro-kernels of direct convolutions written for one vector type.
///
/// # Safety
/// The kernels need a CPU that supports the instructions of the type.
pub(crate) trait ConvKernels: TileKernels<Element: PackElement> {
    /// Maximum number of output pixels that [`conv_k3`] computes at once, with one and with two
    /// vectors of channels; 0 if there is no such kernel.
    const MAX_PIXELS: [usize; 2] = [0, 0];
    /// Maximum number of input channels that [`filter_grad_k3`] computes at once, likewise.
    const MAX_CHANNELS: [usize; 2] = [0, 0];
    /// Maximum number of pixels that [`strided_rows_tile`] computes at once.
    const MAX_STRIDED_ROWS: usize;

    /// Applies the bias epilogue to rows of `cols` columns, right after they were written.
    ///
    /// # Safety
    /// The CPU supports the instructions of the type, and the rows of `c` and the columns of the
    /// bias are valid.
    unsafe fn add_bias(
        c: *mut Self::Element,
        c_row: usize,
        rows: usize,
        cols: usize,
        bias: Bias<Self::Element>,
    );
    /// Computes a tile of 1 to [`ConvKernels::MAX_STRIDED_ROWS`] pixels; see [`strided_rows_tile`].
    ///
    /// # Safety
    /// Same as [`Tile::run`](crate::gemm::microkernel::Tile::run), for every pixel.
    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_, Self::Element>, pixels: usize);
    /// Returns the kernel for `pixels` pixels and `vectors` vectors of channels; see [`conv_k3`].
    fn conv_k3(_pixels: usize, _vectors: usize) -> ConvK3Fn<Self::Element> {
        unreachable!("MAX_PIXELS is 0, so no caller asks for this kernel")
    }
    /// Returns the kernel for `channels` input channels and `vectors` vectors of output channels;
    /// see [`filter_grad_k3`].
    fn filter_grad_k3(_channels: usize, _vectors: usize) -> FilterGradK3Fn<Self::Element> {
        unreachable!("MAX_CHANNELS is 0, so no caller asks for this kernel")
    }
}

/// The kernels of Winograd and col2im for one vector type. There are none for bf16, because transformed
/// tiles would have to be rounded again, and none for f64, which is there for its precision.
pub(crate) trait WinogradKernels: ConvKernels<Element = f32> {
    /// The transforms of F(2x2, 3x3) and F(4x4, 3x3).
    const TRANSFORMS: &'static TransformTable;
    /// Those for 4x4 filters with stride 2.
    const STRIDE2: &'static winograd_stride2::Transforms;
    /// Adds products to outputs; see [`col2im`](super::col2im).
    const ADD_RUNS: unsafe fn(&col2im::Runs);
}

impl WinogradKernels for __m512 {
    const TRANSFORMS: &'static TransformTable = &winograd_transform::AVX512;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX512;
    const ADD_RUNS: unsafe fn(&col2im::Runs) = col2im::add_runs_avx512;
}

impl WinogradKernels for __m256 {
    const TRANSFORMS: &'static TransformTable = &winograd_transform::AVX2;
    const STRIDE2: &'static winograd_stride2::Transforms = &winograd_stride2::AVX2;
    const ADD_RUNS: unsafe fn(&col2im::Runs) = col2im::add_runs_avx2;
}

/// Writes the functions of [`ConvKernels`] that every vector type has: the bias epilogue with these
/// instructions, and the kernels of a table for [`strided_rows_tile`].
macro_rules! vector_kernels {
    ($vector:ty, $features:literal, $strided_rows:ident) => {
        const MAX_STRIDED_ROWS: usize = strided_rows_tile::$strided_rows[0].len();

        unsafe fn add_bias(
            c: *mut Self::Element,
            c_row: usize,
            rows: usize,
            cols: usize,
            bias: Bias<Self::Element>,
        ) {
            type Element = <$vector as Simd>::Element;
            #[target_feature(enable = $features)]
            unsafe fn with_features(
                c: *mut Element,
                c_row: usize,
                rows: usize,
                cols: usize,
                bias: Bias<Element>,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe { add_bias::<$vector>(c, c_row, rows, cols, bias) }
            }
            // SAFETY: guaranteed by the caller, which has checked that the CPU has the
            // instructions.
            unsafe { with_features(c, c_row, rows, cols, bias) }
        }

        unsafe fn run_strided_rows(rows: &StridedRowsTile<'_, Self::Element>, pixels: usize) {
            let vectors = rows.tile.cols.div_ceil(<$vector as Simd>::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe { strided_rows_tile::$strided_rows[vectors - 1][pixels - 1](rows) }
        }
    };
}

impl ConvKernels for __m512 {
    const MAX_PIXELS: [usize; 2] = [conv_k3::AVX512_ONE.len(), conv_k3::AVX512_TWO.len()];
    const MAX_CHANNELS: [usize; 2] = [filter_grad_k3::AVX512_ONE.len(), filter_grad_k3::AVX512_TWO.len()];
    vector_kernels!(__m512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", AVX512);

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
    // Tiles multiply more than the kernels for three taps do.
    const MAX_STRIDED_ROWS: usize = Amx::MAX_ROWS;

    unsafe fn add_bias(c: *mut f32, c_row: usize, rows: usize, cols: usize, bias: Bias<f32>) {
        // SAFETY: guaranteed by the caller; every CPU with AMX has AVX-512.
        unsafe { __m512::add_bias(c, c_row, rows, cols, bias) }
    }

    unsafe fn run_strided_rows(rows: &StridedRowsTile<'_>, pixels: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { strided_rows_tile::amx(rows, pixels) }
    }
}

// AVX2 has too few registers for three taps.
impl ConvKernels for __m256 {
    vector_kernels!(__m256, "avx2,fma", AVX2);
}

impl ConvKernels for __m512d {
    vector_kernels!(__m512d, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", AVX512_F64);
}

impl ConvKernels for __m256d {
    vector_kernels!(__m256d, "avx2,fma", AVX2_F64);
}

/// Adds the bias, if there is one, and then applies ReLU, if requested.
///
/// # Safety
/// The CPU supports the instructions of `V`, and the rows of `c` and the columns of the bias are
/// valid.
#[inline(always)]
unsafe fn add_bias<V: Simd>(
    c: *mut V::Element,
    c_row: usize,
    rows: usize,
    cols: usize,
    bias: Bias<V::Element>,
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
