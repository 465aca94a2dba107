//! The reference models, as the peers in `bench/peers` have them too.

use crate::classifiers::{self, Classifier, Net};
use crate::{dcgan, ptb};
use std::str::FromStr;
use tensorpack::graph::{Graph, Op, Tensor, UPDATE_OPS};
use tensorpack::optim::minimize;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{Error, HostTensor, Result};

/// A reference model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// 784-512-512-10.
    Mlp,
    /// Four 3x3 convolutions, two poolings, two fully connected layers.
    Mnist,
    /// The residual net of 32 layers for 32x32 images.
    Resnet32,
    /// Two layers of LSTM over 35 words.
    Ptb,
    /// A generator and a discriminator of 32x32 images, both updated in a step.
    Dcgan,
}

/// What is fed, by name.
pub(crate) type Feeds = Vec<(&'static str, HostTensor)>;

const ALL: [Model; 5] = [Model::Mlp, Model::Mnist, Model::Resnet32, Model::Ptb, Model::Dcgan];

impl FromStr for Model {
    type Err = Error;
    fn from_str(name: &str) -> Result<Model> {
        let names = ALL.map(Model::name).join(", ");
        let model = ALL.into_iter().find(|m| m.name() == name);
        model.ok_or_else(|| Error::argument(format!("{name} is none of {names}")))
    }
}

impl Model {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Mnist => "mnist",
            Model::Resnet32 => "resnet32",
            Model::Ptb => "ptb",
            Model::Dcgan => "dcgan",
        }
    }

    /// The batch it is measured with.
    pub(crate) fn batch(self) -> usize {
        match self {
            Model::Mlp | Model::Mnist | Model::Resnet32 => 128,
            Model::Ptb => 20,
            Model::Dcgan => 64,
        }
    }

    /// Builds the model with its training step, for batches of this size; returns the cost and the step.
    pub(crate) fn build(self, graph: &Graph, batch: usize) -> Result<(Tensor, Op)> {
        let t = &TowerContext::training(graph);
        let (cost, train) = match (self.classifier(), self) {
            (Some(classifier), _) => {
                let inputs: Vec<Tensor> = classifier.inputs().iter().map(|s| graph.placeholder(s)).collect();
                let cost = classifier.cost(t, &inputs);
                let train = minimize(&cost, &classifier.optimizer())?;
                (cost, train)
            }
            (None, Model::Ptb) => ptb::build(t)?,
            (None, _) => dcgan::build(t, batch)?,
        };
        let updates = graph.collection_ops(UPDATE_OPS);
        Ok((cost, graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>())))
    }

    /// A batch that means nothing but is always the same.
    pub(crate) fn synthetic(self, batch: usize) -> Result<Feeds> {
        let rng = CounterRng::new(0, "synthetic");
        let image = |sizes: &[usize]| {
            let sizes: Vec<usize> = [batch].into_iter().chain(sizes.iter().copied()).collect();
            let n = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
            let n = n.ok_or_else(|| Error::argument("the batch is too large"))?;
            HostTensor::new(sizes, (0..n as u64).map(|i| rng.normal(0, i) as f32).collect())
        };
        let whole = |stream: u64, sizes: &[usize], below: u32| {
            let n: usize = sizes.iter().product();
            HostTensor::new(sizes, (0..n as u64).map(|i| (rng.word(stream, i) % below) as i32).collect())
        };
        let classify = |sizes: &[usize]| {
            Ok(vec![("image", image(sizes)?), ("label", whole(1, &[batch], classifiers::CLASSES as u32)?)])
        };
        match self {
            Model::Mlp => classify(&[784]),
            Model::Mnist => classify(&[28, 28, 1]),
            Model::Resnet32 => classify(&[32, 32, 3]),
            Model::Ptb => {
                let words = |stream| whole(stream, &[batch, ptb::STEPS], ptb::WORDS as u32);
                Ok(vec![("words", words(1)?), ("next", words(2)?)])
            }
            Model::Dcgan => Ok(vec![("image", image(&dcgan::IMAGE)?)]),
        }
    }

    /// The model as one that tells images apart, if it is one.
    pub(crate) fn classifier(self) -> Option<Classifier> {
        let (sizes, net): (&[usize], Net) = match self {
            Model::Mlp => (&[784], classifiers::mlp),
            Model::Mnist => (&[28, 28, 1], classifiers::mnist),
            Model::Resnet32 => (&[32, 32, 3], classifiers::resnet32),
            Model::Ptb | Model::Dcgan => return None,
        };
        Some(Classifier { sizes: sizes.to_vec(), net })
    }
}
