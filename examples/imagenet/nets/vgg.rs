//! VGG (Simonyan and Zisserman, 2014), without normalization.

use super::Variant;
use tensorpack::ops::Padding;
use tensorpack::prelude::*;

/// Channels and number of convolutions between poolings.
const STAGES: [(usize, usize); 5] = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)];

/// Thirteen convolutions and three linear layers.
pub(super) fn vgg16(t: &TowerContext, images: &Tensor, variant: &Variant) -> Tensor {
    let mut x = images.clone();
    // As in torchvision, ReLU and pooling count as layers, too.
    let mut index = 0;
    for (channels, count) in STAGES {
        for _ in 0..count {
            let conv =
                Conv2d::new(variant.channels(channels), 3).padding(Padding::Explicit([[1; 2]; 2])).relu();
            x = conv.apply(t, &format!("features/{index}"), &x);
            index += 2;
        }
        x = x.max_pool(2);
        index += 1;
    }
    for name in ["0", "3"] {
        let hidden = Linear::new(variant.channels(4096)).relu();
        x = hidden.apply(t, &format!("classifier/{name}"), &x);
        x = Dropout::new(0.5).apply(t, &format!("dropout{name}"), &x);
    }
    Linear::new(variant.classes).init(Init::Normal(0.0, 0.01)).apply(t, "classifier/6", &x)
}
