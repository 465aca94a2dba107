//! Nets for ImageNet, layer for layer those of torchvision and timm: with their weights they compute the
//! same (`tests/torch_nets.rs`). Variables have the names of the ready weight maps.

mod efficientnet_b0;
mod layers;
mod mobilenet_v2;
mod preact_resnet;
mod resnet;
mod shufflenet_v2;
mod vgg;

pub(crate) use mobilenet_v2::mobilenet_v2;

use layers::divisible;
use resnet::ResNet;
use tensorpack::prelude::*;

/// The number of classes, the width and the first layers of a net.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) classes: usize,
    /// The factor of the numbers of channels.
    pub(crate) width: f64,
    /// For images of 32x32 pixels: the first layers do not reduce the size, which ends at 1/8, or at 1/32
    /// in a VGG.
    pub(crate) small_images: bool,
}

impl Variant {
    /// The net of its paper: 1000 classes, 224x224 pixels.
    pub(crate) const IMAGENET: Variant = Variant { classes: 1000, width: 1.0, small_images: false };

    /// Returns the number of channels where the paper has `channels`, a multiple of 8 if it differs.
    fn channels(&self, channels: usize) -> usize {
        if self.width == 1.0 { channels } else { divisible(channels as f64 * self.width) }
    }

    /// Returns the stride of the first layers, which is 2 in the papers.
    fn first_stride(&self) -> usize {
        if self.small_images { 1 } else { 2 }
    }
}

/// Maps images `[batch, height, width, 3]` to logits.
pub(crate) type Net = fn(&TowerContext, &Tensor, &Variant) -> Tensor;

/// All nets by name.
pub(crate) const NETS: [(&str, Net); 15] = [
    ("resnet18", |t, x, variant| ResNet::basic([2, 2, 2, 2]).apply(t, x, variant)),
    ("resnet34", |t, x, variant| ResNet::basic([3, 4, 6, 3]).apply(t, x, variant)),
    ("resnet50", |t, x, variant| ResNet::bottleneck([3, 4, 6, 3]).apply(t, x, variant)),
    ("resnet101", |t, x, variant| ResNet::bottleneck([3, 4, 23, 3]).apply(t, x, variant)),
    ("resnet152", |t, x, variant| ResNet::bottleneck([3, 8, 36, 3]).apply(t, x, variant)),
    ("resnext50_32x4d", |t, x, variant| ResNet::bottleneck([3, 4, 6, 3]).groups(32, 4).apply(t, x, variant)),
    ("se_resnet50", |t, x, variant| ResNet::bottleneck([3, 4, 6, 3]).squeeze().apply(t, x, variant)),
    ("preact_resnet18", preact_resnet18),
    ("preact_resnet34", |t, x, variant| preact_resnet::basic(t, x, variant, [3, 4, 6, 3])),
    ("preact_resnet50", |t, x, variant| preact_resnet::bottleneck(t, x, variant, [3, 4, 6, 3])),
    ("preact_resnet101", |t, x, variant| preact_resnet::bottleneck(t, x, variant, [3, 4, 23, 3])),
    ("vgg16", vgg::vgg16),
    ("mobilenet_v2", mobilenet_v2),
    ("efficientnet_b0", efficientnet_b0::efficientnet_b0),
    ("shufflenet_v2_x1_0", shufflenet_v2::shufflenet_v2),
];

/// A pre-activation ResNet of 18 layers.
pub(crate) fn preact_resnet18(t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
    preact_resnet::basic(t, images, variant, [2, 2, 2, 2])
}

/// Returns the net of this name.
pub(crate) fn find(name: &str) -> Result<Net> {
    let found = NETS.iter().find(|(net, _)| *net == name).map(|(_, net)| *net);
    found.ok_or_else(|| Error::argument(format!("there is no net {name:?}")))
}
