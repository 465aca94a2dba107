//! The nets whose predictions are measured; the peers in `bench/peers` have the same.

use crate::imagenet_nets::{Variant, mobilenet_v2};
use crate::resnet50::resnet50;
use crate::transformer::{self, TOKENS, WIDTH};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;

/// A net for inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Net {
    /// ResNet-50 for 224x224 images.
    Resnet50,
    /// MobileNetV2 for 224x224 images: depthwise convolutions.
    #[value(name = "mobilenet_v2")]
    MobilenetV2,
    /// Six layers of attention over 256 tokens of width 384.
    Transformer,
}

impl Net {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Net::Resnet50 => "resnet50",
            Net::MobilenetV2 => "mobilenet_v2",
            Net::Transformer => "transformer",
        }
    }

    /// The sizes of one example.
    fn sizes(self) -> &'static [usize] {
        match self {
            Net::Resnet50 | Net::MobilenetV2 => &[224, 224, 3],
            Net::Transformer => &[TOKENS, WIDTH],
        }
    }

    /// The net with its input `x`, of any number of examples, and its output `y`.
    pub(crate) fn tower(self) -> Result<TowerFunc> {
        let sizes = self.sizes().iter().map(|&n| Some(n));
        let x = TensorSpec::f32("x", [None].into_iter().chain(sizes).collect::<Vec<_>>());
        TowerFunc::new(vec![x], move |t, inputs| {
            let y = match self {
                Net::Resnet50 => resnet50(t, &inputs[0], false),
                Net::MobilenetV2 => mobilenet_v2(t, &inputs[0], &Variant::IMAGENET),
                Net::Transformer => transformer::layers(t, &inputs[0], &transformer::attention()),
            };
            vec![y.named("y")]
        })
    }

    /// Normal numbers, always the same.
    pub(crate) fn examples(self, batch: usize) -> Result<HostTensor> {
        let sizes: Vec<usize> = [batch].into_iter().chain(self.sizes().iter().copied()).collect();
        let rng = CounterRng::new(0, "examples");
        let n: usize = self.sizes().iter().product();
        let one: Vec<f32> = (0..n as u64).map(|i| rng.normal(0, i) as f32).collect();
        HostTensor::new(sizes, one.repeat(batch))
    }
}
