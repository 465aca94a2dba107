//! The image classifiers among the reference models, with their optimizers.

use crate::models::Model;
use crate::{classifiers, resnet50};
use tensorpack::graph::{Tensor, TensorSpec};
use tensorpack::optim::{Adam, Momentum, Optimizer, ParamGroups};
use tensorpack::tower::{ModelDesc, TowerContext};

/// Maps images to logits.
type Net = fn(&TowerContext, &Tensor) -> Tensor;

/// A model and its optimizer.
#[derive(Clone)]
pub(crate) struct Classifier {
    /// The shape of an image.
    pub(crate) sizes: &'static [usize],
    pub(crate) classes: usize,
    net: Net,
    optimizer: fn() -> Box<dyn Optimizer>,
}

impl Classifier {
    /// Returns the classifier of this model, if it is one.
    pub(crate) fn from_model(model: Model) -> Option<Classifier> {
        let small = |sizes, net| Classifier { sizes, classes: classifiers::CLASSES, net, optimizer: adam };
        let large =
            |net| Classifier { sizes: &[224, 224, 3], classes: resnet50::CLASSES, net, optimizer: momentum };
        match model {
            Model::Mlp => Some(small(&[784], |t, x| classifiers::mlp(t, x, 512))),
            Model::Dqn => Some(small(&[8], |t, x| classifiers::mlp(t, x, 64))),
            Model::Mnist => Some(small(&[28, 28, 1], classifiers::mnist)),
            Model::Resnet32 => Some(small(&[32, 32, 3], |t, x| classifiers::resnet(t, x, 5))),
            Model::Resnet50 => Some(large(|t, x| resnet50::resnet50(t, x, false))),
            Model::Resnet50Recompute => Some(large(|t, x| resnet50::resnet50(t, x, true))),
            Model::Ptb | Model::Transformer | Model::Dcgan => None,
        }
    }
}

impl ModelDesc for Classifier {
    fn inputs(&self) -> Vec<TensorSpec> {
        let sizes: Vec<Option<usize>> =
            std::iter::once(None).chain(self.sizes.iter().map(|&n| Some(n))).collect();
        vec![TensorSpec::f32("image", sizes), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let logits = (self.net)(t, &inputs[0]);
        logits.sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

fn adam() -> Box<dyn Optimizer> {
    Adam::new(1e-3).boxed()
}

/// The usual optimizer of ResNets on large images.
fn momentum() -> Box<dyn Optimizer> {
    ParamGroups::new(Momentum::new(1e-3, 0.9)).group(".*", |g| g.decay(1e-4)).boxed()
}
