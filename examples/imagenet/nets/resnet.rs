//! ResNet (He et al., 2015) with the stride of a block on its 3x3 convolution ("v1.5"), ResNeXt (Xie et
//! al., 2016) and SE-ResNet (Hu et al., 2017).

use super::Variant;
use super::layers::{classifier, conv, max_pool, squeeze_excitation};
use tensorpack::nn::Activation;
use tensorpack::prelude::*;

pub(super) struct ResNet {
    /// Blocks in each stage.
    blocks: [usize; 4],
    /// Whether a block has three convolutions, the last with four times as many channels.
    is_bottleneck: bool,
    /// Groups of the 3x3 convolutions of bottlenecks, and their channels in the first stage.
    groups: [usize; 2],
    /// Whether blocks have squeeze and excitation.
    has_squeeze: bool,
}

impl ResNet {
    pub(super) fn basic(blocks: [usize; 4]) -> ResNet {
        ResNet { blocks, is_bottleneck: false, groups: [1, 64], has_squeeze: false }
    }

    pub(super) fn bottleneck(blocks: [usize; 4]) -> ResNet {
        ResNet { is_bottleneck: true, ..ResNet::basic(blocks) }
    }

    /// Splits the 3x3 convolutions into `groups`, each of `channels` in the first stage.
    pub(super) fn groups(self, groups: usize, channels: usize) -> ResNet {
        ResNet { groups: [groups, channels], ..self }
    }

    /// Adds squeeze and excitation.
    pub(super) fn squeeze(self) -> ResNet {
        ResNet { has_squeeze: true, ..self }
    }

    pub(super) fn apply(&self, t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
        let norm = BatchNorm::new().relu();
        let first = variant.channels(64);
        let mut x = match variant.small_images {
            true => norm.apply(t, "bn1", &conv(first, 3, 1).apply(t, "conv1", images)),
            false => max_pool(&norm.apply(t, "bn1", &conv(first, 7, 2).apply(t, "conv1", images))),
        };
        let mut inputs = first;
        for (stage, blocks) in self.blocks.into_iter().enumerate() {
            let channels = first << stage;
            for i in 0..blocks {
                let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                x = t.scope(&format!("layer{}/{i}", stage + 1), |t| {
                    self.block(t, &x, [inputs, channels], stride)
                });
                inputs = if self.is_bottleneck { 4 * channels } else { channels };
            }
        }
        classifier(variant.classes).apply(t, "fc", &x.global_average_pool())
    }

    /// A block with its shortcut, which is a 1x1 convolution where the shape changes.
    fn block(&self, t: &TowerContext, x: &Tensor, [inputs, channels]: [usize; 2], stride: usize) -> Tensor {
        let norm = BatchNorm::new().relu();
        // With a zero scale the block starts as its shortcut.
        let last = BatchNorm::new().gamma(Init::zeros());
        let (mut y, outputs) = if self.is_bottleneck {
            let [groups, width] = self.groups;
            let width = channels * width / 64 * groups;
            let y = norm.apply(t, "bn1", &conv(width, 1, 1).apply(t, "conv1", x));
            let y = norm.apply(t, "bn2", &conv(width, 3, stride).groups(groups).apply(t, "conv2", &y));
            (last.apply(t, "bn3", &conv(4 * channels, 1, 1).apply(t, "conv3", &y)), 4 * channels)
        } else {
            let y = norm.apply(t, "bn1", &conv(channels, 3, stride).apply(t, "conv1", x));
            (last.apply(t, "bn2", &conv(channels, 3, 1).apply(t, "conv2", &y)), channels)
        };
        if self.has_squeeze {
            let sizes = [(outputs / 16).max(8), outputs];
            y = t.scope("se", |t| squeeze_excitation(t, &y, sizes, Activation::Relu));
        }
        if stride == 1 && inputs == outputs {
            return (y + x).relu();
        }
        let shortcut = t.scope("downsample", |t| {
            BatchNorm::new().apply(t, "bn", &conv(outputs, 1, stride).apply(t, "conv", x))
        });
        (y + shortcut).relu()
    }
}
