//! The reference models that classify images into ten classes. Tests build smaller ones, too.

use tensorpack::graph::Tensor;
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::tower::TowerContext;

/// The number of classes.
pub(crate) const CLASSES: usize = 10;

/// Two hidden layers of this many units.
pub(crate) fn mlp(t: &TowerContext, x: &Tensor, units: usize) -> Tensor {
    let hidden = Linear::new(units).relu();
    let x = hidden.apply(t, "fc0", x);
    let x = hidden.apply(t, "fc1", &x);
    Linear::new(CLASSES).apply(t, "fc2", &x)
}

/// Four convolutions, two max poolings, two dense layers.
pub(crate) fn mnist(t: &TowerContext, x: &Tensor) -> Tensor {
    let conv = Conv2d::new(32, 3).relu();
    let x = conv.apply(t, "conv0", x).max_pool(2);
    let x = conv.apply(t, "conv1", &x);
    let x = conv.apply(t, "conv2", &x).max_pool(2);
    let x = conv.apply(t, "conv3", &x);
    let x = Linear::new(512).relu().apply(t, "fc0", &x);
    Linear::new(CLASSES).apply(t, "fc1", &x)
}

/// A ResNet of three stages of this many blocks: 5 give 32 layers.
pub(crate) fn resnet(t: &TowerContext, x: &Tensor, blocks: usize) -> Tensor {
    let conv = |channels: usize, stride: usize| Conv2d::new(channels, 3).no_bias().stride(stride);
    let bn = BatchNorm::new();
    let x = conv(16, 1).apply(t, "conv0", x);
    let mut x = bn.clone().relu().apply(t, "bn0", &x);
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = t.scope(&format!("block{stage}.{block}"), |t| {
                let y = conv(channels, stride).apply(t, "conv1", &x);
                let y = bn.clone().relu().apply(t, "bn1", &y);
                let y = conv(channels, 1).apply(t, "conv2", &y);
                let y = bn.apply(t, "bn2", &y);
                let shortcut = if stride == 1 {
                    x.clone()
                } else {
                    let every_other = x.strided_slice(&[0; 4], &[None; 4], &[1, 2, 2, 1]);
                    every_other.pad(&[0; 4], &[0, 0, 0, channels / 2], &[0; 4])
                };
                (y + shortcut).relu()
            });
        }
    }
    Linear::new(CLASSES).apply(t, "fc", &x.global_average_pool())
}
