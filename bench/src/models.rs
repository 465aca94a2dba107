//! The reference models, as the peers in `bench/peers` have them too.

use crate::{classifiers, dcgan, ptb, resnet50};
use std::str::FromStr;
use tensorpack::graph::{Graph, Op, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::optim::{Adam, Momentum, Optimizer, ParamGroups, minimize};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, Error, HostTensor, Result};

/// A reference model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// 784-512-512-10.
    Mlp,
    /// Four 3x3 convolutions, two poolings, two fully connected layers.
    Mnist,
    /// The residual net of 32 layers for 32x32 images.
    Resnet32,
    /// The residual net of 50 layers for 224x224 images.
    Resnet50,
    /// Two layers of LSTM over 35 words.
    Ptb,
    /// A generator and a discriminator of 32x32 images, both updated in a step.
    Dcgan,
}

/// What is fed, by name.
pub(crate) type Feeds = Vec<(&'static str, HostTensor)>;

/// Makes logits of images.
type Net = fn(&TowerContext, &Tensor) -> Tensor;

const ALL: [Model; 6] =
    [Model::Mlp, Model::Mnist, Model::Resnet32, Model::Resnet50, Model::Ptb, Model::Dcgan];

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
            Model::Resnet50 => "resnet50",
            Model::Ptb => "ptb",
            Model::Dcgan => "dcgan",
        }
    }

    /// The batch it is measured with.
    pub(crate) fn batch(self) -> usize {
        match self {
            Model::Mlp | Model::Mnist | Model::Resnet32 => 128,
            Model::Ptb => 20,
            Model::Resnet50 | Model::Dcgan => 64,
        }
    }

    /// Builds the model with its training step, for batches of this size, computing in this type; returns the cost and
    /// the step.
    pub(crate) fn build(self, graph: &Graph, batch: usize, dtype: DType) -> Result<(Tensor, Op)> {
        if matches!(self, Model::Ptb | Model::Dcgan) && dtype != DType::F32 {
            return Err(Error::argument(format!("{} is measured in f32 alone", self.name())));
        }
        let t = &TowerContext::training(graph);
        let classify =
            |sizes: &[usize], net: Net, optimizer: &dyn Optimizer| classify(t, sizes, dtype, net, optimizer);
        let adam = Adam::new(1e-3);
        let (cost, train) = match self {
            Model::Mlp => classify(&[784], |t, x| classifiers::mlp(t, x, 512), &adam)?,
            Model::Mnist => classify(&[28, 28, 1], classifiers::mnist, &adam)?,
            Model::Resnet32 => classify(&[32, 32, 3], |t, x| classifiers::resnet(t, x, 5), &adam)?,
            Model::Resnet50 => {
                let descent = ParamGroups::new(Momentum::new(1e-3, 0.9)).group(".*", |g| g.decay(1e-4));
                classify(&[224, 224, 3], resnet50::resnet50, &descent)?
            }
            Model::Ptb => ptb::build(t)?,
            Model::Dcgan => dcgan::build(t, batch)?,
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
        let classify = |sizes: &[usize], classes: usize| {
            Ok(vec![("image", image(sizes)?), ("label", whole(1, &[batch], classes as u32)?)])
        };
        match self {
            Model::Mlp => classify(&[784], classifiers::CLASSES),
            Model::Mnist => classify(&[28, 28, 1], classifiers::CLASSES),
            Model::Resnet32 => classify(&[32, 32, 3], classifiers::CLASSES),
            Model::Resnet50 => classify(&[224, 224, 3], resnet50::CLASSES),
            Model::Ptb => {
                let words = |stream| whole(stream, &[batch, ptb::STEPS], ptb::WORDS as u32);
                Ok(vec![("words", words(1)?), ("next", words(2)?)])
            }
            Model::Dcgan => Ok(vec![("image", image(&dcgan::IMAGE)?)]),
        }
    }
}

/// A net that classifies images of these sizes, and its training step.
fn classify(
    t: &TowerContext,
    sizes: &[usize],
    dtype: DType,
    net: Net,
    optimizer: &dyn Optimizer,
) -> Result<(Tensor, Op)> {
    let sizes: Vec<Option<usize>> = [None].into_iter().chain(sizes.iter().map(|&n| Some(n))).collect();
    let image = t.graph().placeholder(&TensorSpec::f32("image", sizes));
    let label = t.graph().placeholder(&TensorSpec::i32("label", [None]));
    let cost = net(t, &image.cast(dtype)).sparse_softmax_cross_entropy(&label).mean().named("cost");
    let train = minimize(&cost, optimizer)?;
    Ok((cost, train))
}
