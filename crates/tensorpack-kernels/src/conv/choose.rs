//! Algorithm selection for convolutions.
//!
//! The choice depends on sizes alone, never on timing or on the number of threads, so a program
//! computes the same bits on every run. The thresholds were measured with
//! `examples/contract_speed.rs`.
//!
//! - Winograd F(4x4, 3x3) for 3x3 filters with stride 1, dilation 1 and at least 48 tiles, half full
//!   or more. It needs at least 8 channels on both sides; outputs and input gradients at most 512.
//!   Every output reads an input: one that reads only padding must be exactly zero.
//! - Winograd F(2x2, 3x3) for those with fewer such tiles, but 48 of 2x2 outputs. Outputs and input
//!   gradients need 17 to 512 channels on both sides; filter gradients need at least 17 channels on
//!   both sides and at most 9216 pairs of channels.
//! - Winograd F(2x2, 2x2) for 4x4 filters with stride 2, dilation 1, and at least 48 tiles. Outputs
//!   and input gradients need 32 to 512 channels on one side and 64 to 512 on the other; filter
//!   gradients need 64 to 512 on both.
//! - Matrix products and col2im for few output channels: from 16 input channels on, if the columns of
//!   the product need at most half as many vectors as the filter has taps. Convolutions need stride 1,
//!   and both they and input gradients no dilation along rows.
//! - Direct for everything else, for gradients of 3x3 filters with a tap that reads only padding, and
//!   for every convolution with `exact` set.
//!
//! Depthwise convolutions have loops of their own (`depthwise`), and 1x1 convolutions are folded
//! into long rows first ([`Conv2d::folded`]). The direct algorithm picks one of three micro-kernels
//! for each row of outputs: see [`Microkernel`].

use super::conv2d::Conv2d;
use super::correlation::{Correlation, LANES};
use super::winograd_stride2::{self, WinogradStride2};
use super::winograd_tiles::TileSize;

/// With fewer channels on either side, the transforms of F(4x4, 3x3) or F(2x2, 3x3) cost more than the
/// saved products.
const MIN_CHANNELS_FOUR: usize = 8;
const MIN_CHANNELS_TWO: usize = 17;
/// The same for 4x4 filters with stride 2, on one side and on the other.
const MIN_CHANNELS_STRIDE2: [usize; 2] = [32, 64];
/// With fewer tiles, transforming the filter costs more than the saved products.
const MIN_TILES: usize = 48;
/// With more channels, a chunk's transformed tiles outgrow every L2 cache.
const MAX_CHANNELS: usize = 512;
/// With more pairs of input and output channels, filter gradients by F(2x2, 3x3) are slower than the
/// direct algorithm.
const MAX_CHANNEL_PAIRS_TWO: usize = 96 * 96;

/// With fewer input channels, adding the products up costs more than full vectors save.
const MIN_CHANNELS_COL2IM: usize = 16;

/// How a convolution or one of its gradients is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Direct convolution: tap by tap, every product of the definition.
    Direct,
    /// F(2x2, 3x3) or F(4x4, 3x3): 16 products for each 2x2 tile of outputs and pair of channels
    /// instead of 36, or 36 for each 4x4 tile instead of 144.
    Winograd(TileSize),
    /// F(2x2, 2x2) in four phases: 36 products for each 2x2 tile of outputs, or 4x4 tile of an input
    /// gradient, and pair of channels instead of 64.
    WinogradStride2,
}

impl Algorithm {
    /// Returns the algorithm for the outputs of a convolution, or for its input gradient.
    pub(super) fn for_outputs(work: &Correlation) -> Algorithm {
        let few_enough = work.in_channels().max(work.out_channels()) <= MAX_CHANNELS;
        if few_enough && stride2_pays(work, MIN_CHANNELS_STRIDE2) {
            Algorithm::WinogradStride2
        } else if few_enough && four_pays(work) {
            Algorithm::Winograd(TileSize::Four)
        } else if few_enough && two_pays(work) {
            Algorithm::Winograd(TileSize::Two)
        } else {
            Algorithm::Direct
        }
    }

    /// Returns the algorithm for the gradient with respect to the filter.
    pub(super) fn for_filter_grad(conv: &Conv2d) -> Algorithm {
        let work = Correlation { conv: *conv, backward: false };
        let few_enough = conv.in_channels.max(conv.out_channels) <= MAX_CHANNELS;
        if few_enough && stride2_pays(&work, [MIN_CHANNELS_STRIDE2[1]; 2]) {
            Algorithm::WinogradStride2
        } else if !(0..2).all(|axis| taps_read_inputs(conv, axis)) {
            Algorithm::Direct
        } else if four_pays(&work) {
            Algorithm::Winograd(TileSize::Four)
        } else if conv.in_channels.saturating_mul(conv.out_channels) <= MAX_CHANNEL_PAIRS_TWO
            && two_pays(&work)
        {
            Algorithm::Winograd(TileSize::Two)
        } else {
            Algorithm::Direct
        }
    }
}

/// Returns whether a convolution has at least `min[0]` channels on one side and `min[1]` on the other.
fn has_channels(c: &Conv2d, min: [usize; 2]) -> bool {
    c.in_channels.min(c.out_channels) >= min[0] && c.in_channels.max(c.out_channels) >= min[1]
}

/// Returns whether Winograd for 3x3 filters with stride 1 applies.
fn winograd_applies(c: &Conv2d) -> bool {
    (c.kernel, c.stride, c.dilation) == ([3; 2], [1; 2], [1; 2]) && !c.exact
}

/// Returns whether the transforms of F(4x4, 3x3) apply, and save more than they cost.
fn four_pays(work: &Correlation) -> bool {
    winograd_applies(&work.conv)
        && has_channels(&work.conv, [MIN_CHANNELS_FOUR; 2])
        && tiles_fit(work, TileSize::Four.outputs(), 200)
        && (0..2).all(|axis| reads_inputs(work, axis))
}

/// Returns whether every output reads an input along this axis. One that reads nothing but padding is
/// exactly zero, and would be off by the rounding error of its tile.
fn reads_inputs(work: &Correlation, axis: usize) -> bool {
    let (sums, inputs) = (work.axis(axis, 0), work.in_size()[axis] as isize);
    sums.offset + sums.taps as isize > 0 && sums.outs as isize + sums.offset <= inputs
}

/// Returns whether every tap of the filter reads an input along this axis. The gradient of one that
/// reads nothing but padding is exactly zero, and would be off by the rounding error of the others.
fn taps_read_inputs(c: &Conv2d, axis: usize) -> bool {
    c.out_size[axis] > c.pad_low[axis] && c.in_size[axis] + c.pad_low[axis] >= c.kernel[axis]
}

/// Returns whether the transforms of F(2x2, 3x3) apply, and save more than they cost.
fn two_pays(work: &Correlation) -> bool {
    winograd_applies(&work.conv)
        && has_channels(&work.conv, [MIN_CHANNELS_TWO; 2])
        && tiles_fit(work, TileSize::Two.outputs(), 120)
}

/// Returns whether the transforms for 4x4 filters with stride 2 apply, and save more than they cost.
fn stride2_pays(work: &Correlation, min_channels: [usize; 2]) -> bool {
    winograd_stride2::applies(&work.conv)
        && !work.conv.exact
        && has_channels(&work.conv, min_channels)
        && tiles_fit(work, WinogradStride2::tile(work), 120)
}

/// Returns whether [`Col2im`](super::col2im::Col2im) applies instead of the direct algorithm, and fills
/// vectors that are mostly empty there.
pub(super) fn col2im_pays(work: &Correlation) -> bool {
    let c = &work.conv;
    let taps = c.kernel[0] * c.kernel[1];
    let vectors = (taps * work.out_channels()).div_ceil(LANES);
    !c.exact
        && (work.backward || c.stride == [1; 2])
        && c.dilation[1] == 1
        && work.in_channels() >= MIN_CHANNELS_COL2IM
        && (1..=taps / 2).contains(&vectors)
}

/// Returns whether there are enough tiles with `tile` outputs along each side. Tiles reach beyond
/// images of other sizes: all of them have at most `percent` of the outputs of the images.
fn tiles_fit(work: &Correlation, tile: usize, percent: usize) -> bool {
    let [height, width] = work.out_size();
    let [down, across] = work.out_size().map(|n| n.div_ceil(tile));
    100 * tile * tile * down * across <= percent * height * width
        && work.conv.batch * down * across >= MIN_TILES
}

/// The micro-kernel that the direct algorithm uses for a row of outputs.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Microkernel {
    /// `conv_k3`: three neighboring taps at stride 1, each input element loaded once for all
    /// three.
    K3,
    /// `strided_rows_tile`: rows too short to fill a tile, so that a tile takes pixels of several
    /// rows and images.
    StridedRows,
    /// `gemm::microkernel`: everything else.
    Tile,
}

/// Rows with fewer outputs fill less than half of a tile.
#[cfg(target_arch = "x86_64")]
pub(super) const SHORT_ROW: usize = 8;

#[cfg(target_arch = "x86_64")]
mod microkernel {
    use super::super::conv_k3::TAPS;
    use super::super::correlation::Axis;
    use super::super::kernel_table::ConvKernels;
    use super::*;

    impl Microkernel {
        /// Returns the micro-kernel for rows along `x` and `cols` output channels.
        pub(in super::super) fn for_outputs<V: ConvKernels>(x: &Axis, cols: usize) -> Microkernel {
            let pixels = V::MAX_PIXELS[cols.div_ceil(V::LANES) - 1];
            if pixels > 0 && x.stride == 1 && x.dilation == 1 && x.taps == TAPS {
                Microkernel::K3
            } else if x.outs < SHORT_ROW {
                Microkernel::StridedRows
            } else {
                Microkernel::Tile
            }
        }

        /// Returns the micro-kernel for filter gradients of `cols` output channels. `K3` needs
        /// enough input channels to keep the FMA units busy.
        pub(in super::super) fn for_filter_grad<V: ConvKernels>(c: &Conv2d, cols: usize) -> Microkernel {
            let channels = V::MAX_CHANNELS.get(cols.div_ceil(V::LANES) - 1).copied().unwrap_or(0);
            let fits = c.kernel[1] == TAPS && c.stride[1] == 1 && c.dilation[1] == 1 && c.out_size[1] >= 2;
            match channels > 0 && fits && c.in_channels >= channels {
                true => Microkernel::K3,
                false => Microkernel::Tile,
            }
        }
    }
}
