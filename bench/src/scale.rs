//! Scaling of the step time with batch size, depth and width.

use crate::classifiers::{self, CLASSES};
use crate::timing::median_seconds;
use tensorpack::graph::{Fetch, Graph, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::nn::{Conv2d, Linear};
use tensorpack::optim::{Adam, minimize};
use tensorpack::runtime::{IntoFetch, Session};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor, Result};

const BATCHES: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Blocks per stage: 8, 14, 20, 32, 44 and 56 layers.
const BLOCKS: [usize; 6] = [1, 2, 3, 5, 7, 9];
/// Not only powers of two: sizes that do not fill vectors and tiles can be much slower.
const UNITS: [usize; 12] = [32, 64, 100, 128, 250, 256, 500, 512, 1000, 1024, 2000, 2048];
const CHANNELS: [usize; 12] = [4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128];
/// Each size is measured for at least this long.
const SECONDS: f64 = 0.7;

/// Measures all sizes and prints one table per dimension.
pub(crate) fn measure() -> Result<()> {
    println!(
        "| batch | mlp: ms per step | us per example | mnist: ms | us | resnet32: ms | us |\n|--:|--:|--:|--:|--:|--:|--:|"
    );
    for batch in BATCHES {
        let mlp = seconds(batch, &[784], |t, x| classifiers::mlp(t, x, 512))?;
        let mnist = seconds(batch, &[28, 28, 1], classifiers::mnist)?;
        let resnet = seconds(batch, &[32, 32, 3], |t, x| classifiers::resnet(t, x, 5))?;
        let cell = |s: f64| format!("{:.3} | {:.1}", s * 1e3, s * 1e6 / batch as f64);
        println!("| {batch} | {} | {} | {} |", cell(mlp), cell(mnist), cell(resnet));
    }
    println!("\n| layers | ms per step of 32 images | us per image and layer |\n|--:|--:|--:|");
    for blocks in BLOCKS {
        let layers = 6 * blocks + 2;
        let s = seconds(32, &[32, 32, 3], |t, x| classifiers::resnet(t, x, blocks))?;
        println!("| {layers} | {:.1} | {:.1} |", s * 1e3, s * 1e6 / (32 * layers) as f64);
    }
    println!("\n| units | ms per step of 128 rows | GFLOP/s |\n|--:|--:|--:|");
    for units in UNITS {
        let s = seconds(128, &[784], |t, x| classifiers::mlp(t, x, units))?;
        // Three matmuls per layer; two for the first, which needs no input gradient.
        let products = 2 * 784 * units + 3 * units * units + 3 * units * CLASSES;
        println!("| {units} | {:.3} | {:.0} |", s * 1e3, (2 * 128 * products) as f64 / s * 1e-9);
    }
    println!("\n| channels | ms per step of 32 images of 32x32 | GFLOP/s |\n|--:|--:|--:|");
    for channels in CHANNELS {
        let s = seconds(32, &[32, 32, channels], |t, x| convolutions(t, x, channels))?;
        let products = (2 + 3 + 3) * 9 * channels * channels;
        println!("| {channels} | {:.2} | {:.0} |", s * 1e3, (2 * 32 * 32 * 32 * products) as f64 / s * 1e-9);
    }
    Ok(())
}

/// Three convolutions of equal width.
fn convolutions(t: &TowerContext, x: &Tensor, channels: usize) -> Tensor {
    let conv = Conv2d::new(channels, 3).relu();
    let x = ["conv0", "conv1", "conv2"].iter().fold(x.clone(), |x, name| conv.apply(t, name, &x));
    Linear::new(CLASSES).apply(t, "fc", &x.global_average_pool())
}

/// Measures the median time of a training step of a model with Adam.
fn seconds(batch: usize, sizes: &[usize], net: impl Fn(&TowerContext, &Tensor) -> Tensor) -> Result<f64> {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let shape: Vec<usize> = std::iter::once(batch).chain(sizes.iter().copied()).collect();
    let image =
        graph.placeholder(&TensorSpec::f32("image", shape.iter().map(|&n| Some(n)).collect::<Vec<_>>()));
    let label = graph.placeholder(&TensorSpec::new("label", DType::I32, [Some(batch)]));
    let cost = net(t, &image).sparse_softmax_cross_entropy(&label).mean();
    let train = minimize(&cost, &Adam::new(1e-3))?;
    let updates = graph.collection_ops(UPDATE_OPS);
    let step = graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>());

    let rng = CounterRng::new(0, "synthetic");
    let images = (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(0, i) as f32).collect();
    let images = HostTensor::new(shape, images)?;
    let labels = HostTensor::new([batch], (0..batch).map(|i| (i % CLASSES) as i32).collect())?;
    let feeds = [("image", &images), ("label", &labels)];
    let (cost, step) = (Fetch::from(&cost), Fetch::from(&step));
    let session = Session::new(graph.freeze()?)?;
    let step = session.prepare(&[&cost as &dyn IntoFetch, &step])?;
    median_seconds(&session, &step, &feeds, SECONDS)
}
