//! MobileNetV2 (Sandler et al., 2018).

use super::Variant;
use super::layers::{classifier, conv, conv_norm, depthwise};
use tensorpack::nn::Activation;
use tensorpack::prelude::*;

/// The stages: expansion, channels, number of blocks, stride.
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

/// A wide block between narrow ones, with a depthwise convolution and a shortcut where shapes agree.
fn inverted_residual(
    t: &TowerContext,
    x: &Tensor,
    [inputs, channels]: [usize; 2],
    expansion: usize,
    stride: usize,
) -> Tensor {
    let (mut y, mut layer) = (x.clone(), 0);
    if expansion != 1 {
        y = conv_norm(t, "0", Activation::Relu6, |t| conv(inputs * expansion, 1, 1).apply(t, "0", &y));
        layer = 1;
    }
    y = conv_norm(t, &layer.to_string(), Activation::Relu6, |t| depthwise(3, stride).apply(t, "0", &y));
    y = conv(channels, 1, 1).apply(t, &(layer + 1).to_string(), &y);
    y = BatchNorm::new().apply(t, &(layer + 2).to_string(), &y);
    if stride == 1 && inputs == channels { x + y } else { y }
}

/// Maps images `[batch, height, width, 3]` to logits.
pub(crate) fn mobilenet_v2(t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
    let (mut inputs, mut index) = (variant.channels(32), 1);
    let mut x = conv_norm(t, "features/0", Activation::Relu6, |t| {
        conv(inputs, 3, variant.first_stride()).apply(t, "0", images)
    });
    for (stage, [expansion, channels, count, stride]) in STAGES.into_iter().enumerate() {
        let channels = variant.channels(channels);
        let stride = if stage == 1 { variant.first_stride() } else { stride };
        for i in 0..count {
            let stride = if i == 0 { stride } else { 1 };
            x = t.scope(&format!("features/{index}/conv"), |t| {
                inverted_residual(t, &x, [inputs, channels], expansion, stride)
            });
            (inputs, index) = (channels, index + 1);
        }
    }
    // The last layer does not become narrower.
    let last = Variant { width: variant.width.max(1.0), ..*variant }.channels(1280);
    let x = conv_norm(t, "features/18", Activation::Relu6, |t| conv(last, 1, 1).apply(t, "0", &x));
    let x = Dropout::new(0.2).apply(t, "dropout", &x.global_average_pool());
    t.scope("classifier", |t| classifier(variant.classes).apply(t, "1", &x))
}
