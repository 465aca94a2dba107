//! ResNet-50 for 224x224 images (He et al., 2015), with the stride of a block on its 3x3 convolution
//! ("v1.5").

use tensorpack::graph::Fan;
use tensorpack::prelude::*;

/// The number of ImageNet classes.
pub(crate) const CLASSES: usize = 1000;

/// Maps images `[batch, 224, 224, 3]` to logits. With `recompute`, training keeps only what each block
/// takes in.
pub(crate) fn resnet50(t: &TowerContext, images: &Tensor, recompute: bool) -> Tensor {
    let norm = BatchNorm::new().relu();
    let x = norm.apply(t, "bn0", &conv(64, 7, 2).apply(t, "conv0", images));
    let mut x =
        x.max_pool_with(PoolOptions { stride: [2, 2], padding: Padding::Same, ..PoolOptions::square(3) });
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        for i in 0..blocks {
            let name = format!("group{stage}.block{i}");
            let block = |t: &TowerContext| bottleneck(t, &x, 64 << stage, stage, i);
            x = if recompute { t.recompute(&name, block) } else { t.scope(&name, block) };
        }
    }
    let fc = Linear::new(CLASSES).init(Init::Normal(0.0, 0.01));
    fc.apply(t, "linear", &x.global_average_pool())
}

/// A bottleneck block: 1x1 to `width` channels, 3x3, 1x1 to four times as many, with a shortcut. The
/// first block of a stage changes the number of channels and, except in the first stage, halves the
/// image size.
fn bottleneck(t: &TowerContext, x: &Tensor, width: usize, stage: usize, i: usize) -> Tensor {
    let stride = if stage > 0 && i == 0 { 2 } else { 1 };
    let norm = BatchNorm::new();
    let y = norm.clone().relu().apply(t, "bn1", &conv(width, 1, 1).apply(t, "conv1", x));
    let y = norm.clone().relu().apply(t, "bn2", &conv(width, 3, stride).apply(t, "conv2", &y));
    // With a zero scale the block starts as its shortcut.
    let y = norm.clone().gamma(Init::zeros()).apply(t, "bn3", &conv(4 * width, 1, 1).apply(t, "conv3", &y));
    let shortcut = match i {
        0 => norm.apply(t, "bn_shortcut", &conv(4 * width, 1, stride).apply(t, "conv_shortcut", x)),
        _ => x.clone(),
    };
    (y + shortcut).relu()
}

fn conv(channels: usize, kernel: usize, stride: usize) -> Conv2d {
    let he = Init::VarianceScaling { scale: 2.0, fan: Fan::Out };
    Conv2d::new(channels, kernel).stride(stride).no_bias().init(he)
}
