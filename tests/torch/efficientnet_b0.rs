//! torchvision's EfficientNet-B0.

use super::mobilenet_v2::{conv, pad};
use tensorpack::nn::Activation;
use tensorpack::prelude::*;

/// The stages: expansion, kernel, stride, channels, number of blocks.
const STAGES: [[usize; 5]; 7] = [
    [1, 3, 1, 16, 1],
    [6, 3, 2, 24, 2],
    [6, 5, 2, 40, 2],
    [6, 3, 2, 80, 3],
    [6, 5, 1, 112, 3],
    [6, 5, 2, 192, 4],
    [6, 3, 1, 320, 1],
];

/// A convolution `name/0` and its normalization `name/1`.
fn norm_silu(t: &TowerContext, name: &str, apply: impl FnOnce(&TowerContext) -> Tensor) -> Tensor {
    t.scope(name, |t| BatchNorm::new().activation(Activation::Silu).apply(t, "1", &apply(t)))
}

/// Scales channels by what a small net makes of their means.
fn squeeze_excitation(t: &TowerContext, x: &Tensor, [squeezed, channels]: [usize; 2]) -> Tensor {
    let means = x.global_average_pool().reshape(&[-1, 1, 1, channels as isize]);
    let y = Conv2d::new(squeezed, 1).activation(Activation::Silu).apply(t, "fc1", &means);
    x * Conv2d::new(channels, 1).activation(Activation::Sigmoid).apply(t, "fc2", &y)
}

/// torchvision's `MBConv`, without the addition of its input.
fn block(t: &TowerContext, x: &Tensor, [inputs, channels]: [usize; 2], sizes: [usize; 3]) -> Tensor {
    let [expansion, kernel, stride] = sizes;
    let (mut y, mut layer, hidden) = (x.clone(), 0, inputs * expansion);
    if expansion != 1 {
        y = norm_silu(t, "0", |t| conv(hidden, 1, 1).apply(t, "0", &y));
        layer = 1;
    }
    let depthwise = DepthwiseConv2d::new(kernel).stride(stride).padding(pad(kernel / 2)).no_bias();
    y = norm_silu(t, &layer.to_string(), |t| depthwise.apply(t, "0", &y));
    y = t.scope(&(layer + 1).to_string(), |t| squeeze_excitation(t, &y, [inputs / 4, hidden]));
    t.scope(&(layer + 2).to_string(), |t| {
        BatchNorm::new().apply(t, "1", &conv(channels, 1, 1).apply(t, "0", &y))
    })
}

/// Maps images `[batch, height, width, 3]` to 1000 logits.
pub(crate) fn efficientnet_b0(t: &TowerContext, x: &Tensor) -> Tensor {
    let mut x = norm_silu(t, "features/0", |t| conv(32, 3, 2).apply(t, "0", x));
    let mut inputs = 32;
    for (stage, [expansion, kernel, stride, channels, count]) in STAGES.into_iter().enumerate() {
        for i in 0..count {
            let stride = if i == 0 { stride } else { 1 };
            let y = t.scope(&format!("features/{}/{i}/block", stage + 1), |t| {
                block(t, &x, [inputs, channels], [expansion, kernel, stride])
            });
            x = if stride == 1 && inputs == channels { x + y } else { y };
            inputs = channels;
        }
    }
    let x = norm_silu(t, "features/8", |t| conv(1280, 1, 1).apply(t, "0", &x));
    t.scope("classifier", |t| Linear::new(1000).apply(t, "1", &x.global_average_pool()))
}
