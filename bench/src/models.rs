//! The reference models, which the peers in `bench/peers` implement, too.

use crate::classifier::Classifier;
use crate::transformer::{self, LanguageModel};
use crate::{dcgan, ptb};
use tensorpack::graph::{Graph, Op, Tensor, UPDATE_OPS};
use tensorpack::optim::minimize;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::{ModelDesc, TowerContext};
use tensorpack::{Error, HostTensor, Result};

/// A reference model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Model {
    /// 784-512-512-10.
    Mlp,
    /// 8-64-64-10, the size of a Q-network for control tasks.
    Dqn,
    /// Four 3x3 convolutions, two max poolings, two dense layers.
    Mnist,
    /// ResNet-32 for 32x32 images.
    Resnet32,
    /// ResNet-50 for 224x224 images.
    Resnet50,
    /// The same, keeping only what each block takes in; the rest is computed again.
    Resnet50Recompute,
    /// A two-layer LSTM over 35 words.
    Ptb,
    /// A language model of bytes: six layers of attention over 256 tokens of width 384.
    Transformer,
    /// A DCGAN for 32x32 images; a step updates generator and discriminator.
    Dcgan,
}

/// Feeds by name.
pub(crate) type Feeds = Vec<(&'static str, HostTensor)>;

/// The most normal numbers that are drawn for a batch.
const DRAWN: usize = 1 << 20;

impl Model {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Dqn => "dqn",
            Model::Mnist => "mnist",
            Model::Resnet32 => "resnet32",
            Model::Resnet50 => "resnet50",
            Model::Resnet50Recompute => "resnet50-recompute",
            Model::Ptb => "ptb",
            Model::Transformer => "transformer",
            Model::Dcgan => "dcgan",
        }
    }

    /// The default batch size.
    pub(crate) fn batch(self) -> usize {
        match self {
            Model::Mlp | Model::Mnist | Model::Resnet32 => 128,
            Model::Dqn => 32,
            Model::Ptb => 20,
            Model::Resnet50 | Model::Resnet50Recompute | Model::Transformer | Model::Dcgan => 64,
        }
    }

    /// Builds the model and its train ops for this batch size, in the precision of the graph; returns
    /// the cost and the ops.
    pub(crate) fn build(self, graph: &Graph, batch: usize) -> Result<(Tensor, Op)> {
        let minimized = |t: &TowerContext, model: &dyn ModelDesc| {
            let inputs: Vec<Tensor> = model.inputs().iter().map(|s| graph.placeholder(s)).collect();
            let cost = model.build_graph(t, &inputs);
            let train = minimize(&cost, &*model.optimizer(t))?;
            Ok((cost, train))
        };
        let (cost, train) = TowerContext::training(graph).build(|t| match Classifier::from_model(self) {
            Some(classifier) => minimized(t, &classifier),
            None if self == Model::Ptb => ptb::build(t),
            None if self == Model::Transformer => minimized(t, &LanguageModel),
            None => dcgan::build(t, batch),
        })?;
        let updates = graph.collection_ops(UPDATE_OPS);
        Ok((cost, graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>())))
    }

    /// A synthetic batch, always the same.
    pub(crate) fn synthetic(self, batch: usize) -> Result<Feeds> {
        let rng = CounterRng::new(0, "synthetic");
        let image = |sizes: &[usize]| {
            let sizes: Vec<usize> = [batch].into_iter().chain(sizes.iter().copied()).collect();
            let n = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
            let n = n.ok_or_else(|| Error::argument("the batch is too large"))?;
            // The time to the first step includes this: a large batch repeats its numbers.
            let some: Vec<f32> = (0..n.min(DRAWN) as u64).map(|i| rng.normal(0, i) as f32).collect();
            HostTensor::new(sizes, some.iter().copied().cycle().take(n).collect())
        };
        let integers = |stream: u64, sizes: &[usize], below: u32| {
            let n: usize = sizes.iter().product();
            HostTensor::new(sizes, (0..n as u64).map(|i| (rng.word(stream, i) % below) as i32).collect())
        };
        if let Some(Classifier { sizes, classes, .. }) = Classifier::from_model(self) {
            return Ok(vec![("image", image(sizes)?), ("label", integers(1, &[batch], classes as u32)?)]);
        }
        let text = |steps: usize, words: usize| {
            let words = |stream| integers(stream, &[batch, steps], words as u32);
            Ok(vec![("words", words(1)?), ("next", words(2)?)])
        };
        match self {
            Model::Ptb => text(ptb::STEPS, ptb::WORDS),
            Model::Transformer => text(transformer::TOKENS, transformer::BYTES),
            _ => Ok(vec![("image", image(&dcgan::IMAGE)?)]),
        }
    }
}
