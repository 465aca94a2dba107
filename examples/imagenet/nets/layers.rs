//! Layers that several nets have.

use tensorpack::graph::Fan;
use tensorpack::nn::Activation;
use tensorpack::ops::{Padding, PoolOptions};
use tensorpack::prelude::*;

/// The padding that PyTorch calls `padding=n`.
fn pad(n: usize) -> Padding {
    Padding::Explicit([[n, n]; 2])
}

/// A convolution padded by half its size, without a bias.
pub(super) fn conv(channels: usize, kernel: usize, stride: usize) -> Conv2d {
    let he = Init::VarianceScaling { scale: 2.0, fan: Fan::Out };
    Conv2d::new(channels, kernel).stride(stride).padding(pad(kernel / 2)).no_bias().init(he)
}

/// A depthwise convolution padded by half its size, without a bias.
pub(super) fn depthwise(kernel: usize, stride: usize) -> DepthwiseConv2d {
    DepthwiseConv2d::new(kernel).stride(stride).padding(pad(kernel / 2)).no_bias()
}

/// Max pooling of 3x3 pixels with a stride of 2, padded by 1.
pub(super) fn max_pool(x: &Tensor) -> Tensor {
    x.max_pool_with(PoolOptions { stride: [2; 2], padding: pad(1), ..PoolOptions::square(3) })
}

/// The last layer: logits from the means over positions.
pub(super) fn classifier(classes: usize) -> Linear {
    Linear::new(classes).init(Init::Normal(0.0, 0.01))
}

/// A convolution `name/0`, its normalization `name/1`, and an activation: torchvision's
/// `Conv2dNormActivation`.
pub(super) fn conv_norm(
    t: &TowerContext,
    name: &str,
    activation: Activation,
    conv: impl FnOnce(&TowerContext) -> Tensor,
) -> Tensor {
    t.scope(name, |t| BatchNorm::new().activation(activation).apply(t, "1", &conv(t)))
}

/// Scales channels by what two layers, `fc1` and `fc2`, compute from their means (Hu et al., 2017).
pub(super) fn squeeze_excitation(
    t: &TowerContext,
    x: &Tensor,
    [squeezed, channels]: [usize; 2],
    activation: Activation,
) -> Tensor {
    let means = x.global_average_pool().reshape(&[-1, 1, 1, channels as isize]);
    let y = Conv2d::new(squeezed, 1).activation(activation).apply(t, "fc1", &means);
    x * Conv2d::new(channels, 1).activation(Activation::Sigmoid).apply(t, "fc2", &y)
}

/// Rounds a number of channels to a multiple of 8 that is at least 8 and at least 90 % of it.
pub(super) fn divisible(channels: f64) -> usize {
    let rounded = ((channels / 8.0).round() * 8.0).max(8.0);
    (if rounded < 0.9 * channels { rounded + 8.0 } else { rounded }) as usize
}
