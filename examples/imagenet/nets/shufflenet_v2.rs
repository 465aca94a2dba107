//! ShuffleNet V2 (Ma et al., 2018).

use super::Variant;
use super::layers::{classifier, conv, depthwise, max_pool};
use tensorpack::prelude::*;

/// Channels and number of blocks of each stage.
const STAGES: [(usize, usize); 3] = [(116, 4), (232, 8), (464, 4)];

/// A convolution and its normalization, two layers of a branch that begin with number `layer`.
fn conv_norm(t: &TowerContext, layer: usize, x: &Tensor, channels: usize, norm: BatchNorm) -> Tensor {
    norm.apply(t, &(layer + 1).to_string(), &conv(channels, 1, 1).apply(t, &layer.to_string(), x))
}

/// A depthwise convolution and its normalization, in the same way.
fn depthwise_norm(t: &TowerContext, layer: usize, x: &Tensor, stride: usize) -> Tensor {
    BatchNorm::new().apply(t, &(layer + 1).to_string(), &depthwise(3, stride).apply(t, &layer.to_string(), x))
}

/// The branch with three convolutions.
fn long_branch(t: &TowerContext, x: &Tensor, channels: usize, stride: usize) -> Tensor {
    let relu = BatchNorm::new().relu();
    t.scope("branch2", |t| {
        let y = conv_norm(t, 0, x, channels, relu.clone());
        let y = depthwise_norm(t, 3, &y, stride);
        conv_norm(t, 5, &y, channels, relu)
    })
}

/// Passes half of the channels on and transforms the other half. With a stride of 2, both halves are
/// transformed from all channels.
fn block(t: &TowerContext, x: &Tensor, channels: usize, stride: usize) -> Tensor {
    let half = channels / 2;
    let [passed, transformed] = if stride == 1 {
        let halves = x.split(&[half, half], 3);
        [halves[0].clone(), long_branch(t, &halves[1], half, 1)]
    } else {
        let short = t.scope("branch1", |t| {
            conv_norm(t, 2, &depthwise_norm(t, 0, x, stride), half, BatchNorm::new().relu())
        });
        [short, long_branch(t, x, half, stride)]
    };
    let both = x.graph().concat(&[passed, transformed], 3);
    // Channel shuffle: the channels of the two halves alternate.
    both.split_dim(3, &[2, half as isize]).transpose(&[0, 1, 2, 4, 3]).merge_dims(3, 2)
}

/// Maps images `[batch, height, width, 3]` to logits.
pub(super) fn shufflenet_v2(t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
    let norm = BatchNorm::new().relu();
    let first = conv(variant.channels(24), 3, variant.first_stride());
    let mut x = t.scope("conv1", |t| norm.apply(t, "1", &first.apply(t, "0", images)));
    if !variant.small_images {
        x = max_pool(&x);
    }
    for (stage, (channels, blocks)) in STAGES.into_iter().enumerate() {
        for i in 0..blocks {
            let stride = if i == 0 { 2 } else { 1 };
            let name = format!("stage{}/{i}", stage + 2);
            x = t.scope(&name, |t| block(t, &x, variant.channels(channels), stride));
        }
    }
    let last = conv(variant.channels(1024), 1, 1);
    let x = t.scope("conv5", |t| norm.apply(t, "1", &last.apply(t, "0", &x)));
    classifier(variant.classes).apply(t, "fc", &x.global_average_pool())
}
