//! ResNets with pre-activation (He et al., 2016): normalization and ReLU come before each convolution, and
//! nothing after the sum.

use super::Variant;
use super::layers::{classifier, conv, max_pool};
use tensorpack::prelude::*;

/// A net whose blocks have two 3x3 convolutions.
pub(super) fn basic(t: &TowerContext, images: &Tensor, variant: &Variant, blocks: [usize; 4]) -> Tensor {
    net(t, images, variant, blocks, 1, |t, x, channels, stride| {
        let y = conv(channels, 3, stride).apply(t, "conv1", x);
        conv(channels, 3, 1).apply(t, "conv2", &BatchNorm::new().relu().apply(t, "norm2", &y))
    })
}

/// A net whose blocks have a 1x1, a 3x3 and a 1x1 convolution, the last with four times as many channels.
pub(super) fn bottleneck(t: &TowerContext, images: &Tensor, variant: &Variant, blocks: [usize; 4]) -> Tensor {
    net(t, images, variant, blocks, 4, |t, x, channels, stride| {
        let norm = BatchNorm::new().relu();
        let y = conv(channels, 1, 1).apply(t, "conv1", x);
        let y = conv(channels, 3, stride).apply(t, "conv2", &norm.apply(t, "norm2", &y));
        conv(4 * channels, 1, 1).apply(t, "conv3", &norm.apply(t, "norm3", &y))
    })
}

/// A net of blocks that apply `residual(t, x, channels, stride)` to their normalized input.
fn net(
    t: &TowerContext,
    images: &Tensor,
    variant: &Variant,
    blocks: [usize; 4],
    expansion: usize,
    residual: impl Fn(&TowerContext, &Tensor, usize, usize) -> Tensor,
) -> Tensor {
    let norm = BatchNorm::new().relu();
    let first = variant.channels(64);
    let mut x = t.scope("stem", |t| match variant.small_images {
        true => conv(first, 3, 1).apply(t, "conv", images),
        false => max_pool(&conv(first, 7, 2).apply(t, "conv", images)),
    });
    let mut inputs = first;
    for (stage, blocks) in blocks.into_iter().enumerate() {
        let (channels, outputs) = (first << stage, (first << stage) * expansion);
        for i in 0..blocks {
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            x = t.scope(&format!("stages/{stage}/blocks/{i}"), |t| {
                let y = norm.apply(t, "norm1", &x);
                let shortcut = match stride == 1 && inputs == outputs {
                    true => x.clone(),
                    false => conv(outputs, 1, stride).apply(t, "downsample/conv", &y),
                };
                residual(t, &y, channels, stride) + shortcut
            });
            inputs = outputs;
        }
    }
    let x = norm.apply(t, "norm", &x).global_average_pool();
    classifier(variant.classes).apply(t, "head/fc", &x)
}
