//! Convolutions of NHWC images with HWIO filters, and their gradients.
//!
//! - `choose` selects the algorithm of a convolution.
//! - `direct` computes convolutions and input gradients tap by tap with the micro-kernel of `gemm`;
//!   `conv_k3` and `strided_rows_tile` are its specialized micro-kernels, `window` its padded
//!   copies of the input.
//! - `winograd` computes them with F(2x2, 3x3) or F(4x4, 3x3); `winograd_tiles` divides images into
//!   tiles, `winograd_transform` transforms tiles, `winograd_lines` a line of a
//!   tile, and `prefetcher` fetches what comes next.
//!   `winograd_stride2` computes those with 4x4 filters and stride 2 with F(2x2, 2x2).
//! - `col2im` computes them, for few output channels, as a matrix product whose results are added up.
//! - `filter_grad` is the gradient with respect to the filter: `filter_grad_direct` with
//!   `filter_grad_k3`, or `winograd_filter_grad`, or `winograd_stride2_filter_grad`.
//! - `depthwise` and `depthwise_filter_grad` convolve each channel with its own filter.

mod choose;
mod col2im;
pub(crate) mod conv2d;
mod correlation;
mod depthwise;
mod depthwise_filter_grad;
mod filter_grad;
mod winograd;
mod winograd_filter_grad;
mod winograd_stride2;
mod winograd_stride2_filter_grad;
mod winograd_tiles;

#[cfg(target_arch = "x86_64")]
mod conv_k3;
#[cfg(target_arch = "x86_64")]
mod direct;
#[cfg(target_arch = "x86_64")]
mod filter_grad_direct;
#[cfg(target_arch = "x86_64")]
mod filter_grad_k3;
#[cfg(target_arch = "x86_64")]
mod kernel_table;
#[cfg(target_arch = "x86_64")]
mod prefetcher;
#[cfg(target_arch = "x86_64")]
mod strided_rows_tile;
#[cfg(target_arch = "x86_64")]
mod window;
#[cfg(target_arch = "x86_64")]
mod winograd_lines;
#[cfg(target_arch = "x86_64")]
mod winograd_transform;

pub use conv2d::{Conv2d, Conv2dForward, Conv2dInputGrad};
pub use depthwise::{DepthwiseForward, DepthwiseInputGrad};
pub use depthwise_filter_grad::DepthwiseFilterGrad;
pub use filter_grad::Conv2dFilterGrad;
