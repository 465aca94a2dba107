//! Algorithm selection for convolutions.
//!
//! The choice depends on sizes alone, never on timing or on the number of threads, so a program
//! computes the same bits on every run. The thresholds were measured with
//! `examples/contract_speed.rs`.
//!
//! - Winograd F(2x2, 3x3) for 3x3 filters with stride 1, dilation 1 and at least 48 tiles. Outputs
//!   and input gradients need 17 to 512 channels on both sides; filter gradients need at least 17
//!   channels on both sides and at most 9216 pairs of channels.
//! - Winograd F(2x2, 2x2) for 4x4 filters with stride 2, dilation 1, and at least 48 tiles. Outputs
//!   and input gradients need 32 to 512 channels on one side and 64 to 512 on the other; filter
//!   gradients need 64 to 512 on both.
//! - Direct for everything else, and for every convolution with `exact` set.
//!
//! Depthwise convolutions have loops of their own (`depthwise`), and 1x1 convolutions are folded
//! into long rows first ([`Conv2d::folded`]). The direct algorithm picks one of three micro-kernels
//! for each row of outputs: see [`Microkernel`].

use super::conv2d::Conv2d;
use super::correlation::Correlation;
use super::winograd_stride2::{self, WinogradStride2};
use super::winograd_transform::TILE;

/// With fewer channels on either side, the transforms cost more than the saved products; the second
/// is for 4x4 filters with stride 2.
const MIN_CHANNELS: usize = 17;
const MIN_CHANNELS_STRIDE2: usize = 32;
/// With fewer tiles, transforming the filter costs more than the saved products.
const MIN_TILES: usize = 48;
/// With more channels, a chunk's transformed tiles outgrow every L2 cache.
const MAX_CHANNELS: usize = 512;
/// With more pairs of input and output channels, the sums of a filter gradient outgrow the L2
/// cache.
const MAX_CHANNEL_PAIRS: usize = 96 * 96;

/// How a convolution or one of its gradients is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Direct convolution: tap by tap, every product of the definition.
    Direct,
    /// F(2x2, 3x3): 16 products for each 2x2 tile of outputs and pair of channels instead of 36.
    Winograd,
    /// F(2x2, 2x2) in four phases: 36 products for each 2x2 tile of outputs, or 4x4 tile of an input
    /// gradient, and pair of channels instead of 64.
    WinogradStride2,
}

impl Algorithm {
    /// Returns the algorithm for the outputs of a convolution, or for its input gradient.
    pub(super) fn for_outputs(work: &Correlation) -> Algorithm {
        let channels = work.in_channels().max(work.out_channels());
        if channels >= 2 * MIN_CHANNELS_STRIDE2 && stride2_pays(work) {
            return Algorithm::WinogradStride2;
        }
        Algorithm::winograd_if(winograd_pays(work) && channels <= MAX_CHANNELS)
    }

    /// Returns the algorithm for the gradient with respect to the filter.
    pub(super) fn for_filter_grad(conv: &Conv2d) -> Algorithm {
        let pairs = conv.in_channels.saturating_mul(conv.out_channels);
        let work = Correlation { conv: *conv, backward: false };
        let channels = conv.in_channels.min(conv.out_channels);
        if channels >= 2 * MIN_CHANNELS_STRIDE2 && stride2_pays(&work) {
            return Algorithm::WinogradStride2;
        }
        Algorithm::winograd_if(winograd_pays(&work) && pairs <= MAX_CHANNEL_PAIRS)
    }

    fn winograd_if(condition: bool) -> Algorithm {
        if condition { Algorithm::Winograd } else { Algorithm::Direct }
    }
}

/// Returns whether the transforms of F(2x2, 3x3) apply, and save more than they cost.
fn winograd_pays(work: &Correlation) -> bool {
    let c = &work.conv;
    (c.kernel, c.stride, c.dilation) == ([3; 2], [1; 2], [1; 2])
        && !c.exact
        && c.in_channels.min(c.out_channels) >= MIN_CHANNELS
        && tiles_fit(work, TILE)
}

/// Returns whether the transforms for 4x4 filters with stride 2 apply, and save more than they cost.
fn stride2_pays(work: &Correlation) -> bool {
    let c = &work.conv;
    winograd_stride2::applies(c)
        && !c.exact
        && c.in_channels.min(c.out_channels) >= MIN_CHANNELS_STRIDE2
        && c.in_channels.max(c.out_channels) <= MAX_CHANNELS
        && tiles_fit(work, WinogradStride2::tile(work))
}

/// Returns whether there are enough tiles with `tile` outputs along each side. Tiles reach beyond
/// images of other sizes: at most a fifth of the work may be wasted there.
fn tiles_fit(work: &Correlation, tile: usize) -> bool {
    let [height, width] = work.out_size();
    let [down, across] = work.out_size().map(|n| n.div_ceil(tile));
    10 * tile * tile * down * across <= 12 * height * width && work.conv.batch * down * across >= MIN_TILES
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
