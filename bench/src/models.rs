//! The reference models, as the peers in `bench/peers` have them too.

use std::str::FromStr;
use tensorpack::graph::{Graph, Op, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::optim::{Adam, minimize};
use tensorpack::tower::TowerContext;
use tensorpack::{Error, Result};

/// A reference model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// 784-512-512-10.
    Mlp,
    /// Four 3x3 convolutions, two poolings, two fully connected layers.
    Mnist,
    /// The residual net of 32 layers for 32x32 images.
    Resnet32,
}

impl FromStr for Model {
    type Err = Error;
    fn from_str(name: &str) -> Result<Model> {
        match name {
            "mlp" => Ok(Model::Mlp),
            "mnist" => Ok(Model::Mnist),
            "resnet32" => Ok(Model::Resnet32),
            _ => Err(Error::argument(format!("{name} is none of mlp, mnist, resnet32"))),
        }
    }
}

impl Model {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Mnist => "mnist",
            Model::Resnet32 => "resnet32",
        }
    }

    /// The sizes of one example.
    pub(crate) fn example(self) -> &'static [usize] {
        match self {
            Model::Mlp => &[784],
            Model::Mnist => &[28, 28, 1],
            Model::Resnet32 => &[32, 32, 3],
        }
    }

    /// Builds the model with its training step; returns the cost and the step.
    pub(crate) fn build(self, graph: &Graph) -> Result<(Tensor, Op)> {
        let t = &TowerContext::training(graph);
        let sizes: Vec<Option<usize>> =
            [None].into_iter().chain(self.example().iter().map(|&n| Some(n))).collect();
        let image = graph.placeholder(&TensorSpec::f32("image", sizes));
        let label = graph.placeholder(&TensorSpec::i32("label", [None]));
        let logits = match self {
            Model::Mlp => mlp(t, &image),
            Model::Mnist => mnist(t, &image),
            Model::Resnet32 => resnet32(t, &image),
        };
        let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cost");
        let train = minimize(&cost, &Adam::new(1e-3))?;
        let updates = graph.collection_ops(UPDATE_OPS);
        Ok((cost, graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>())))
    }
}

fn mlp(t: &TowerContext, x: &Tensor) -> Tensor {
    let hidden = Linear::new(512).relu();
    let x = hidden.apply(t, "fc0", x);
    let x = hidden.apply(t, "fc1", &x);
    Linear::new(10).apply(t, "fc2", &x)
}

fn mnist(t: &TowerContext, x: &Tensor) -> Tensor {
    let conv = Conv2d::new(32, 3).relu();
    let x = conv.apply(t, "conv0", x).max_pool(2);
    let x = conv.apply(t, "conv1", &x);
    let x = conv.apply(t, "conv2", &x).max_pool(2);
    let x = conv.apply(t, "conv3", &x);
    let x = Linear::new(512).relu().apply(t, "fc0", &x);
    Linear::new(10).apply(t, "fc1", &x)
}

fn resnet32(t: &TowerContext, x: &Tensor) -> Tensor {
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
    Linear::new(10).apply(t, "fc", &x.global_average_pool())
}
