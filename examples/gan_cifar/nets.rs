//! The residual networks for 32x32 images of Gulrajani et al. (2017), which have 128 channels.

use tensorpack::graph::Fan;
use tensorpack::prelude::*;

/// The generator: from noise `[batch, n]` to images `[batch, 32, 32, 3]` in -1 to 1. Its variables are
/// under `gen/`.
pub(crate) fn generator(t: &TowerContext, z: &Tensor, channels: usize) -> Tensor {
    t.auto_reuse(|t| {
        t.scope("gen", |t| {
            let x = Linear::new(4 * 4 * channels).init(Init::xavier()).apply(t, "linear", z);
            let mut x = x.reshape(&[-1, 4, 4, channels as isize]);
            for i in 0..3 {
                x = t.scope(&format!("up{i}"), |t| up(t, &x, channels));
            }
            let x = BatchNorm::new().relu().apply(t, "norm", &x);
            let out = Conv2d::new(3, 3).init(Init::xavier()).activation(Activation::Tanh);
            out.apply(t, "out", &x)
        })
    })
}

/// The critic: one score for each of the images `[batch, 32, 32, 3]`. Its variables are under
/// `discrim/`; every call shares those of the first. It has no normalization.
pub(crate) fn critic(t: &TowerContext, images: &Tensor, channels: usize) -> Tensor {
    t.auto_reuse(|t| {
        t.scope("discrim", |t| {
            let x = t.scope("down0", |t| first(t, images, channels));
            let x = t.scope("down1", |t| down(t, &x, channels));
            let x = t.scope("same0", |t| same(t, &x, channels));
            let x = t.scope("same1", |t| same(t, &x, channels)).relu();
            Linear::new(1).init(Init::xavier()).apply(t, "out", &x.global_average_pool())
        })
    })
}

/// A 3x3 convolution in a residual block.
fn conv(channels: usize) -> Conv2d {
    Conv2d::new(channels, 3).init(Init::VarianceScaling { scale: 2.0, fan: Fan::In })
}

/// A 1x1 convolution in a shortcut.
fn shortcut(channels: usize) -> Conv2d {
    Conv2d::new(channels, 1).init(Init::xavier())
}

/// Returns `[batch, height, width, channels]` with twice the height and width.
fn doubled(x: &Tensor) -> Tensor {
    let size = [1, 2].map(|axis| x.shape()[axis].known().unwrap_or(1) * 2);
    x.resize_nearest(size)
}

/// A block of the generator, which doubles the size.
fn up(t: &TowerContext, x: &Tensor, channels: usize) -> Tensor {
    let y = doubled(&BatchNorm::new().relu().apply(t, "norm1", x));
    // The second normalization makes a bias of the first convolution redundant.
    let y = conv(channels).no_bias().apply(t, "conv1", &y);
    let y = BatchNorm::new().relu().apply(t, "norm2", &y);
    let y = conv(channels).apply(t, "conv2", &y);
    y + shortcut(channels).apply(t, "shortcut", &doubled(x))
}

/// The first block of the critic: images have no activation in front, and the shortcut halves first.
fn first(t: &TowerContext, x: &Tensor, channels: usize) -> Tensor {
    let y = conv(channels).apply(t, "conv1", x).relu();
    let y = conv(channels).apply(t, "conv2", &y).average_pool(2);
    y + shortcut(channels).apply(t, "shortcut", &x.average_pool(2))
}

/// A block of the critic that halves the size.
fn down(t: &TowerContext, x: &Tensor, channels: usize) -> Tensor {
    let y = conv(channels).apply(t, "conv1", &x.relu()).relu();
    let y = conv(channels).apply(t, "conv2", &y).average_pool(2);
    y + shortcut(channels).apply(t, "shortcut", x).average_pool(2)
}

/// A block of the critic that keeps the size.
fn same(t: &TowerContext, x: &Tensor, channels: usize) -> Tensor {
    let y = conv(channels).apply(t, "conv1", &x.relu()).relu();
    x + conv(channels).apply(t, "conv2", &y)
}
