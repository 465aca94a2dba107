//! torchvision's MobileNetV2.

use tensorpack::nn::Activation;
use tensorpack::ops::Padding;
use tensorpack::prelude::*;

/// The padding that PyTorch calls `padding=n`.
pub(crate) fn pad(n: usize) -> Padding {
    Padding::Explicit([[n, n]; 2])
}

/// A convolution as torchvision builds it: padded by half its size, without a bias.
pub(crate) fn conv(channels: usize, kernel: usize, stride: usize) -> Conv2d {
    Conv2d::new(channels, kernel).stride(stride).padding(pad(kernel / 2)).no_bias()
}

/// torchvision's `Conv2dNormActivation`: `name/0` is the convolution and `name/1` its normalization.
fn conv_norm_relu6(t: &TowerContext, name: &str, apply: impl FnOnce(&TowerContext) -> Tensor) -> Tensor {
    t.scope(name, |t| BatchNorm::new().activation(Activation::Relu6).apply(t, "1", &apply(t)))
}

/// torchvision's `InvertedResidual`.
fn inverted_residual(
    t: &TowerContext,
    x: &Tensor,
    [inputs, channels]: [usize; 2],
    expansion: usize,
    stride: usize,
) -> Tensor {
    let (mut y, mut layer) = (x.clone(), 0);
    if expansion != 1 {
        y = conv_norm_relu6(t, "0", |t| conv(inputs * expansion, 1, 1).apply(t, "0", &y));
        layer = 1;
    }
    let depthwise = DepthwiseConv2d::new(3).stride(stride).padding(pad(1)).no_bias();
    y = conv_norm_relu6(t, &layer.to_string(), |t| depthwise.apply(t, "0", &y));
    y = conv(channels, 1, 1).apply(t, &(layer + 1).to_string(), &y);
    y = BatchNorm::new().apply(t, &(layer + 2).to_string(), &y);
    if stride == 1 && inputs == channels { x + y } else { y }
}

/// Maps images `[batch, height, width, 3]` to 1000 logits.
pub(crate) fn mobilenet_v2(t: &TowerContext, x: &Tensor) -> Tensor {
    let mut x = conv_norm_relu6(t, "features/0", |t| conv(32, 3, 2).apply(t, "0", x));
    let (mut inputs, mut index) = (32, 1);
    let stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ];
    for (expansion, channels, count, stride) in stages {
        for i in 0..count {
            let stride = if i == 0 { stride } else { 1 };
            x = t.scope(&format!("features/{index}/conv"), |t| {
                inverted_residual(t, &x, [inputs, channels], expansion, stride)
            });
            (inputs, index) = (channels, index + 1);
        }
    }
    let x = conv_norm_relu6(t, "features/18", |t| conv(1280, 1, 1).apply(t, "0", &x));
    t.scope("classifier", |t| Linear::new(1000).apply(t, "1", &x.global_average_pool()))
}
