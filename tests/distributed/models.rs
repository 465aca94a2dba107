//! Small models and their data.

use crate::fault;
use crate::task::{Difference, Net, Place, Task};
use std::thread;
use tensorpack::dataflow::{DataFlow, Flow, FromList};
use tensorpack::optim::{Accumulate, Optimizer};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const SIZE: usize = 8;
const CLASSES: usize = 4;
const EXAMPLES: usize = 96;
/// An odd number, so that ranks cannot divide the weights evenly.
pub(crate) const WIDE: usize = 60_001;

/// A model, with faults in its graph. All ranks and all runs have the same graph.
pub(crate) struct Classifier {
    pub(crate) net: Net,
    pub(crate) plain: bool,
    pub(crate) difference: Option<Difference>,
}

impl ModelDesc for Classifier {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("image", [None, Some(SIZE), Some(SIZE)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let faulty = |place: Place, x: Tensor| match t.is_training() && !self.plain {
            true => fault::at(place, &x),
            false => x,
        };
        let x = faulty(Place::Forward, inputs[0].expand_dims(3));
        let width = if self.difference == Some(Difference::Model) { 9 } else { 8 };
        let x = match self.net {
            Net::Dense => dense(t, &x, width),
            Net::Convnet => convnet(t, &x, width),
            Net::Resnet => resnet(t, &x, width),
            Net::Wide => Linear::new(WIDE).relu().apply(t, "fc0", &x),
        };
        // Its gradient is computed first of all, so the fault is early in the backward pass.
        let x = faulty(Place::Backward, x);
        let logits = Linear::new(CLASSES).apply(t, "logits", &x).named("scores");
        let cost = logits.sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        let rate = if self.difference == Some(Difference::LearningRate) { 0.04 } else { 0.05 };
        let optimizer = match self.net {
            Net::Resnet => Momentum::new(rate, 0.9).boxed(),
            Net::Wide => Accumulate::new(Adam::new(rate / 10.0), 2).boxed(),
            _ => Adam::new(rate).boxed(),
        };
        if self.plain { optimizer } else { optimizer.process(FaultyUpdate).boxed() }
    }
}

/// The fault after the exchange.
#[derive(Debug)]
struct FaultyUpdate;

impl GradProcessor for FaultyUpdate {
    fn process(&self, _: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        let process = |g: Gradient| match g.variable.name() == "logits/W" {
            true => {
                let value = fault::at(Place::Update, &g.value);
                g.with_value(value)
            }
            false => g,
        };
        gradients.into_iter().map(process).collect()
    }
}

fn dense(t: &TowerContext, x: &Tensor, width: usize) -> Tensor {
    let x = Linear::new(2 * width).apply(t, "fc0", x);
    let x = BatchNorm::new().relu().apply(t, "bn0", &x);
    Dropout::new(0.3).apply(t, "dropout", &x)
}

fn convnet(t: &TowerContext, x: &Tensor, width: usize) -> Tensor {
    let x = Conv2d::new(width, 3).relu().apply(t, "conv0", x).max_pool(2);
    let x = Dropout::new(0.2).apply(t, "dropout0", &x);
    let x = Conv2d::new(width, 3).relu().apply(t, "conv1", &x).max_pool(2);
    let x = Linear::new(2 * width).relu().apply(t, "fc0", &x);
    Dropout::new(0.5).apply(t, "dropout1", &x)
}

fn resnet(t: &TowerContext, x: &Tensor, width: usize) -> Tensor {
    let conv = |name: &str, x: &Tensor| Conv2d::new(width, 3).no_bias().apply(t, name, x);
    let norm = |name: &str, x: &Tensor| BatchNorm::new().relu().apply(t, name, x);
    let mut x = conv("conv0", x);
    for i in 0..2 {
        let y = conv(&format!("res{i}.conv0"), &norm(&format!("res{i}.bn0"), &x));
        let y = conv(&format!("res{i}.conv1"), &norm(&format!("res{i}.bn1"), &y));
        x = x + y;
    }
    norm("bnlast", &x).global_average_pool()
}

/// Returns noisy patterns of four classes.
fn data(seed: u64, bad_example: bool) -> FromList {
    let rng = CounterRng::new(seed, "images");
    let example = |i: usize| {
        let class = i % CLASSES;
        let pixel = |p: usize| {
            let wave = (((p % SIZE) * (class + 1) + p / SIZE) as f64 * 0.7).sin();
            (wave + 0.5 * rng.uniform(i as u64, p as u64) - 0.25) as f32
        };
        let mut image: Vec<f32> = (0..SIZE * SIZE).map(pixel).collect();
        if bad_example && i == EXAMPLES / 2 {
            image[0] = f32::NAN;
        }
        vec![HostTensor::new([SIZE, SIZE], image).unwrap(), HostTensor::scalar(class as i32)]
    };
    FromList::new((0..EXAMPLES).map(example).collect())
}

/// Returns the batches to train on: shuffled and augmented.
pub(crate) fn training_data(difference: Option<Difference>, bad_example: bool) -> Flow {
    let seed = if difference == Some(Difference::Data) { 1 } else { 0 };
    let batch = if difference == Some(Difference::BatchSize) { 4 } else { 3 };
    let augmented = data(seed, bad_example).shuffle().map_random(|mut sample, rng| {
        fault::inject(Place::Data)?;
        sample[0].as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x += 0.01 * rng.normal() as f32);
        Ok(sample)
    });
    augmented.batch(batch).into_flow()
}

/// Returns the batches to validate on.
pub(crate) fn validation_data(task: &Task) -> Flow {
    let slow = task.slow_validation;
    let examples = data(2, false).map(move |sample| {
        fault::inject(Place::Validation)?;
        thread::sleep(slow);
        Ok(sample)
    });
    examples.batch(task.validation_batch).into_flow()
}
