//! The reference models that tell ten classes of images apart.

use tensorpack::graph::{Tensor, TensorSpec};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::optim::Adam;
use tensorpack::tower::TowerContext;

/// How many classes there are.
pub(crate) const CLASSES: usize = 10;

/// From images to a score for each class.
pub(crate) type Net = fn(&TowerContext, &Tensor) -> Tensor;

/// A net, and what it is trained with.
pub(crate) struct Classifier {
    /// Of an image.
    pub(crate) sizes: Vec<usize>,
    pub(crate) net: Net,
}

impl Classifier {
    pub(crate) fn inputs(&self) -> Vec<TensorSpec> {
        let sizes: Vec<Option<usize>> =
            std::iter::once(None).chain(self.sizes.iter().map(|&n| Some(n))).collect();
        vec![TensorSpec::f32("image", sizes), TensorSpec::i32("label", [None])]
    }

    pub(crate) fn cost(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        (self.net)(t, &inputs[0]).sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    pub(crate) fn optimizer(&self) -> Adam {
        Adam::new(1e-3)
    }
}

pub(crate) fn mlp(t: &TowerContext, x: &Tensor) -> Tensor {
    let hidden = Linear::new(512).relu();
    let x = hidden.apply(t, "fc0", x);
    let x = hidden.apply(t, "fc1", &x);
    Linear::new(CLASSES).apply(t, "fc2", &x)
}

pub(crate) fn mnist(t: &TowerContext, x: &Tensor) -> Tensor {
    let conv = Conv2d::new(32, 3).relu();
    let x = conv.apply(t, "conv0", x).max_pool(2);
    let x = conv.apply(t, "conv1", &x);
    let x = conv.apply(t, "conv2", &x).max_pool(2);
    let x = conv.apply(t, "conv3", &x);
    let x = Linear::new(512).relu().apply(t, "fc0", &x);
    Linear::new(CLASSES).apply(t, "fc1", &x)
}

pub(crate) fn resnet32(t: &TowerContext, x: &Tensor) -> Tensor {
    let conv = |channels: usize, stride: usize| Conv2d::new(channels, 3).no_bias().stride(stride);
    let bn = BatchNorm::new();
    let x = conv(16, 1).apply(t, "conv0", x);
    let mut x = bn.clone().relu().apply(t, "bn0", &x);
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..5 {
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
