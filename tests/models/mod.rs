//! The reference models at the size of a test, each with its training step and fixed data.

#[path = "../../bench/src/classifiers.rs"]
mod classifiers;

use tensorpack::graph::{Graph, Op, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::optim::{Adam, minimize};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// A model whose graph is still open.
pub(crate) struct Model {
    pub(crate) graph: Graph,
    pub(crate) cost: Tensor,
    pub(crate) train: Op,
    /// The sizes of one example.
    example: &'static [usize],
}

impl Model {
    fn new(example: &'static [usize], logits: impl FnOnce(&TowerContext, &Tensor) -> Tensor) -> Model {
        let graph = Graph::new();
        let t = &TowerContext::training(&graph);
        let sizes: Vec<Option<usize>> = [None].into_iter().chain(example.iter().map(|&n| Some(n))).collect();
        let image = graph.placeholder(&TensorSpec::f32("image", sizes));
        let label = graph.placeholder(&TensorSpec::i32("label", [None]));
        let cost = logits(t, &image).sparse_softmax_cross_entropy(&label).mean().named("cost");
        let train = minimize(&cost, &Adam::new(1e-3)).unwrap();
        let updates = graph.collection_ops(UPDATE_OPS);
        let train = graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
        Model { graph, cost, train, example }
    }

    /// Returns images and labels; every `draw` gives new ones.
    pub(crate) fn batch(&self, examples: usize, draw: u64) -> [HostTensor; 2] {
        let sizes: Vec<usize> = [examples].into_iter().chain(self.example.iter().copied()).collect();
        let n = sizes.iter().product::<usize>() as u64;
        let (images, labels) = (CounterRng::new(0, "image"), CounterRng::new(0, "label"));
        let image = (0..n).map(|i| images.normal(draw, i) as f32).collect();
        let label = (0..examples as u64)
            .map(|i| (labels.word(draw, i) % classifiers::CLASSES as u32) as i32)
            .collect();
        [HostTensor::new(sizes, image).unwrap(), HostTensor::new([examples], label).unwrap()]
    }
}

/// Three fully connected layers.
pub(crate) fn mlp() -> Model {
    Model::new(&[784], |t, x| classifiers::mlp(t, x, 128))
}

/// Four convolutions, two poolings, two fully connected layers.
pub(crate) fn mnist() -> Model {
    Model::new(&[28, 28, 1], classifiers::mnist)
}

/// [`mnist`] in f64.
#[allow(dead_code, reason = "rounding matters to some tests alone")]
pub(crate) fn precise_mnist() -> Model {
    Model::new(&[28, 28, 1], |t, x| classifiers::mnist(t, &x.cast(DType::F64)))
}

/// [`mlp`] in f64.
#[allow(dead_code, reason = "rounding matters to some tests alone")]
pub(crate) fn precise_mlp() -> Model {
    Model::new(&[784], |t, x| classifiers::mlp(t, &x.cast(DType::F64), 128))
}

/// [`small_resnet`] in f64.
#[allow(dead_code, reason = "rounding matters to some tests alone")]
pub(crate) fn precise_small_resnet() -> Model {
    Model::new(&[16, 16, 3], |t, x| classifiers::resnet(t, &x.cast(DType::F64), 1))
}

/// A residual net with one block per stage.
pub(crate) fn small_resnet() -> Model {
    Model::new(&[16, 16, 3], |t, x| classifiers::resnet(t, x, 1))
}
