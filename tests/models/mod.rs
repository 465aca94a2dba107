//! The reference models at the size of a test, each with its training step and data that is always the same.

use tensorpack::HostTensor;
use tensorpack::graph::{Graph, Op, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::optim::{Adam, minimize};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;

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

    /// Images and labels, drawn anew for every `draw`.
    pub(crate) fn batch(&self, examples: usize, draw: u64) -> [HostTensor; 2] {
        let sizes: Vec<usize> = [examples].into_iter().chain(self.example.iter().copied()).collect();
        let n = sizes.iter().product::<usize>() as u64;
        let (images, labels) = (CounterRng::new(0, "image"), CounterRng::new(0, "label"));
        let image = (0..n).map(|i| images.normal(draw, i) as f32).collect();
        let label = (0..examples as u64).map(|i| (labels.word(draw, i) % 10) as i32).collect();
        [HostTensor::new(sizes, image).unwrap(), HostTensor::new([examples], label).unwrap()]
    }
}

/// Three fully connected layers.
pub(crate) fn mlp() -> Model {
    Model::new(&[784], |t, x| {
        let hidden = Linear::new(128).relu();
        let x = hidden.apply(t, "fc0", x);
        let x = hidden.apply(t, "fc1", &x);
        Linear::new(10).apply(t, "fc2", &x)
    })
}

/// Four convolutions, two poolings, two fully connected layers.
pub(crate) fn mnist() -> Model {
    Model::new(&[28, 28, 1], |t, x| {
        let conv = Conv2d::new(32, 3).relu();
        let x = conv.apply(t, "conv0", x).max_pool(2);
        let x = conv.apply(t, "conv1", &x);
        let x = conv.apply(t, "conv2", &x).max_pool(2);
        let x = conv.apply(t, "conv3", &x);
        let x = Linear::new(512).relu().apply(t, "fc0", &x);
        Linear::new(10).apply(t, "fc1", &x)
    })
}

/// A residual net with one block a stage.
pub(crate) fn small_resnet() -> Model {
    Model::new(&[16, 16, 3], |t, x| {
        let conv = |channels: usize, stride: usize| Conv2d::new(channels, 3).no_bias().stride(stride);
        let bn = BatchNorm::new();
        let x = conv(16, 1).apply(t, "conv0", x);
        let mut x = bn.clone().relu().apply(t, "bn0", &x);
        for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
            let stride = if stage > 0 { 2 } else { 1 };
            x = t.scope(&format!("block{stage}"), |t| {
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
        Linear::new(10).apply(t, "fc", &x.global_average_pool())
    })
}
