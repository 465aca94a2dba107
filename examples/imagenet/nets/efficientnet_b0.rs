//! EfficientNet-B0 (Tan and Le, 2019), without stochastic depth.

use super::Variant;
use super::layers::{classifier, conv, conv_norm, depthwise, squeeze_excitation};
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

/// A wide block between narrow ones with squeeze and excitation, without the addition of its input.
fn block(t: &TowerContext, x: &Tensor, [inputs, channels]: [usize; 2], sizes: [usize; 3]) -> Tensor {
    let [expansion, kernel, stride] = sizes;
    let (mut y, mut layer, hidden) = (x.clone(), 0, inputs * expansion);
    if expansion != 1 {
        y = conv_norm(t, "0", Activation::Silu, |t| conv(hidden, 1, 1).apply(t, "0", &y));
        layer = 1;
    }
    y = conv_norm(t, &layer.to_string(), Activation::Silu, |t| depthwise(kernel, stride).apply(t, "0", &y));
    y = t.scope(&(layer + 1).to_string(), |t| {
        squeeze_excitation(t, &y, [inputs / 4, hidden], Activation::Silu)
    });
    conv_norm(t, &(layer + 2).to_string(), Activation::Identity, |t| conv(channels, 1, 1).apply(t, "0", &y))
}

/// Maps images `[batch, height, width, 3]` to logits.
pub(super) fn efficientnet_b0(t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
    let mut inputs = variant.channels(32);
    let mut x = conv_norm(t, "features/0", Activation::Silu, |t| {
        conv(inputs, 3, variant.first_stride()).apply(t, "0", images)
    });
    for (stage, [expansion, kernel, stride, channels, count]) in STAGES.into_iter().enumerate() {
        let channels = variant.channels(channels);
        let stride = if stage == 1 { variant.first_stride() } else { stride };
        for i in 0..count {
            let stride = if i == 0 { stride } else { 1 };
            let y = t.scope(&format!("features/{}/{i}/block", stage + 1), |t| {
                block(t, &x, [inputs, channels], [expansion, kernel, stride])
            });
            x = if stride == 1 && inputs == channels { x + y } else { y };
            inputs = channels;
        }
    }
    let last = variant.channels(1280);
    let x = conv_norm(t, "features/8", Activation::Silu, |t| conv(last, 1, 1).apply(t, "0", &x));
    let x = Dropout::new(0.2).apply(t, "dropout", &x.global_average_pool());
    t.scope("classifier", |t| classifier(variant.classes).apply(t, "1", &x))
}
