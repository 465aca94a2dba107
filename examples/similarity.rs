//! Similarity learning: an embedding of digits in the plane, where those of one class are close.
//!
//! `--loss` selects the loss: `siamese` (contrastive, of pairs; Hadsell et al., 2006), `triplet`
//! (Schroff et al., 2015) or `center` (softmax with center loss; Wen et al., 2016).
//! `cargo run --release --example similarity` uses MNIST, or generated digits if that cannot be
//! downloaded, and trains for 5 epochs of 200 steps. Then 5 nearest neighbors among 5,000 training images
//! classify 2,000 test images: 92.6 % right with `siamese`, 89.6 % with `triplet` and 95.0 % with `center`.
//! With `--assert` it needs MNIST and fails below 85 %. `--full` trains for 50 epochs. It draws the test
//! images' embeddings to `embedding.png` in its directory.

mod digits;
mod pictures;

use clap::{Parser, ValueEnum};
use digits::Digits;
use tensorpack::dataflow::{DataFlow, FromFn, RandomAccess, Sample, SampleRng};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

const CLASSES: usize = 10;
const STEPS: u64 = 200;
/// Images per batch.
const BATCH: usize = 120;
/// The distance beyond which images of different classes are left alone.
const MARGIN: f64 = 5.0;
/// The weight of the center loss, and the rate at which centers follow their classes.
const CENTER_WEIGHT: f64 = 0.1;
const CENTER_RATE: f64 = 0.5;
/// Test images, the training images they are compared with, and the neighbors that vote.
const TEST: u64 = 2000;
const REFERENCES: u64 = 5000;
const NEIGHBORS: usize = 5;
/// The smallest accuracy that `--assert` accepts.
const TARGET: f64 = 0.85;

/// Learns an embedding of digits by similarity
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The loss
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Loss::Siamese)]
    loss: Loss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loss {
    Siamese,
    Triplet,
    Center,
}

impl Loss {
    /// The number of images that the loss compares.
    fn group(self) -> usize {
        match self {
            Loss::Siamese => 2,
            Loss::Triplet => 3,
            Loss::Center => 1,
        }
    }
}

pub(crate) struct Embedding {
    pub(crate) loss: Loss,
    pub(crate) epochs: u64,
}

impl ModelDesc for Embedding {
    fn inputs(&self) -> Vec<TensorSpec> {
        let group = Some(self.loss.group());
        vec![
            TensorSpec::f32("image", [None, group, Some(28), Some(28)]),
            TensorSpec::i32("label", [None, group]),
        ]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let [image, label] = inputs else { unreachable!("there are two inputs") };
        let points = LinearWrap::new(t, &image.merge_dims(0, 2).expand_dims(3))
            .layer("conv0", Conv2d::new(16, 5).relu())
            .apply(|x| x.max_pool(2))
            .layer("conv1", Conv2d::new(32, 5).relu())
            .apply(|x| x.max_pool(2))
            .layer("fc0", Linear::new(128).relu())
            .layer("fc1", Linear::new(2))
            .tensor()
            .named("embedding");
        let groups = points.split_dim(0, &[-1, self.loss.group() as isize]);
        let member = |i: usize| groups.split(&vec![1; self.loss.group()], 1)[i].squeeze(1);
        // The squared distance of two members.
        let distance = |i: usize, j: usize| (member(i) - member(j)).square().sum_axes(&[1]);
        let cost = match self.loss {
            Loss::Siamese => {
                let labels = label.split(&[1, 1], 1);
                let same = labels[0].equal(&labels[1]).cast(DType::F32).squeeze(1);
                let squared = distance(0, 1);
                let gap = (-(&squared + 1e-6).sqrt() + MARGIN).relu();
                (&same * squared + (-&same + 1.0) * gap.square()).mean()
            }
            Loss::Triplet => (distance(0, 1) - distance(0, 2) + MARGIN).relu().mean(),
            Loss::Center => center_loss(t, &points, &label.squeeze(1)),
        };
        let cost = cost.named("similarity_loss");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(1e-3, 0.0, self.epochs * STEPS)).boxed()
    }
}

/// The cross entropy of a linear classifier, and the squared distances from the centers of the classes,
/// which follow the points.
fn center_loss(t: &TowerContext, points: &Tensor, label: &Tensor) -> Tensor {
    let logits = Linear::new(CLASSES).apply(t, "classify", points);
    let cross_entropy = logits.sparse_softmax_cross_entropy(label).mean();
    let centers = t.variable(VariableSpec::new("centers", [CLASSES, 2]).init(Init::zeros()).non_trainable());
    let away = points - centers.value().gather(label, 0);
    if t.is_main_training_tower() {
        let members = label.one_hot(CLASSES, DType::F32).transpose(&[1, 0]);
        let counts = members.sum_axes(&[1]).expand_dims(1);
        let step = members.matmul(&away.stop_gradient()) / (counts + 1.0);
        t.graph().add_op_to_collection(UPDATE_OPS, &centers.update(|c| c + step * CENTER_RATE));
    }
    cross_entropy + away.square().sum_axes(&[1]).mean() * (0.5 * CENTER_WEIGHT)
}

/// Training images, by class.
#[derive(Clone)]
struct ByClass {
    digits: Digits,
    indices: Vec<Vec<u64>>,
}

impl ByClass {
    fn new(digits: Digits) -> Result<ByClass> {
        let mut indices = vec![Vec::new(); CLASSES];
        for i in 0..digits.len() {
            indices[digits.get(i)?[1].to_scalar()? as usize].push(i);
        }
        Ok(ByClass { digits, indices })
    }

    /// Draws an image of a class.
    fn draw(&self, class: usize, rng: &mut SampleRng) -> Result<Sample> {
        let indices = &self.indices[class];
        self.digits.get(indices[rng.below(indices.len() as u64) as usize])
    }

    /// Draws the images that a loss compares: two of the same class half of the time, or two of one
    /// class and one of another.
    fn group(&self, loss: Loss, rng: &mut SampleRng) -> Result<Sample> {
        let first = rng.below(CLASSES as u64) as usize;
        let other = (first + 1 + rng.below(CLASSES as u64 - 1) as usize) % CLASSES;
        let classes = match loss {
            Loss::Siamese if rng.bernoulli(0.5) => vec![first, first],
            Loss::Siamese => vec![first, other],
            Loss::Triplet => vec![first, first, other],
            Loss::Center => vec![first],
        };
        let drawn = classes.iter().map(|&class| self.draw(class, rng)).collect::<Result<Vec<Sample>>>()?;
        let labels = classes.iter().map(|&class| class as i32).collect();
        let images = pictures::stack::<f32>(drawn.iter().map(|sample| &sample[0]))?;
        Ok(vec![images, HostTensor::new([classes.len()], labels)?])
    }
}

/// The embedding of an image, and its class.
type Point = ([f64; 2], usize);

/// Embeds the first `count` digits, rounded down to whole groups.
fn embed(predictor: &OfflinePredictor, digits: &Digits, count: u64, group: usize) -> Result<Vec<Point>> {
    let count = count.min(digits.len()) as usize / group * group;
    let samples = (0..count as u64).map(|i| digits.get(i)).collect::<Result<Vec<Sample>>>()?;
    let mut points = Vec::new();
    for part in samples.chunks(250 * group) {
        let images = pictures::stack::<f32>(part.iter().map(|sample| &sample[0]))?;
        let images =
            HostTensor::new([part.len() / group, group, 28, 28], images.as_slice::<f32>()?.to_vec())?;
        let embedded = predictor.predict(&[&images])?.swap_remove(0).to_f64_vec();
        for (sample, &point) in part.iter().zip(embedded.as_chunks::<2>().0) {
            points.push((point, sample[1].to_scalar()? as usize));
        }
    }
    Ok(points)
}

/// Returns the class of most of the nearest references; of equally many, the smallest class.
fn classify(point: [f64; 2], references: &[Point]) -> usize {
    let distance = |&(p, class): &Point| ((p[0] - point[0]).powi(2) + (p[1] - point[1]).powi(2), class);
    let mut nearest: Vec<(f64, usize)> = references.iter().map(distance).collect();
    let neighbors = NEIGHBORS.min(nearest.len());
    nearest.select_nth_unstable_by(neighbors - 1, |a, b| a.0.total_cmp(&b.0));
    let mut votes = [0; CLASSES];
    nearest[..neighbors].iter().for_each(|&(_, class)| votes[class] += 1);
    (0..CLASSES).rev().max_by_key(|&class| votes[class]).unwrap_or(0)
}

/// Draws points in the colors of their classes.
fn draw(points: &[Point]) -> Result<HostTensor> {
    const SIDE: usize = 360;
    const COLORS: [[f32; 3]; CLASSES] = [
        [0.12, 0.47, 0.71],
        [1.0, 0.5, 0.05],
        [0.17, 0.63, 0.17],
        [0.84, 0.15, 0.16],
        [0.58, 0.4, 0.74],
        [0.55, 0.34, 0.29],
        [0.89, 0.47, 0.76],
        [0.5, 0.5, 0.5],
        [0.74, 0.74, 0.13],
        [0.09, 0.75, 0.81],
    ];
    let largest = points.iter().flat_map(|(p, _)| p).fold(1e-9f64, |max, x| max.max(x.abs()));
    let mut pixels = vec![1f32; SIDE * SIDE * 3];
    for &([x, y], class) in points {
        let at = |v: f64| ((v / largest + 1.0) * 0.5 * (SIDE - 3) as f64) as usize;
        for (dy, dx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let start = ((at(y) + dy) * SIDE + at(x) + dx) * 3;
            pixels[start..start + 3].copy_from_slice(&COLORS[class]);
        }
    }
    HostTensor::new([1, SIDE, SIDE, 3], pixels)
}

/// Classifies test images by their neighbors, and returns the accuracy.
fn evaluate(trained: Trained, loss: Loss, [train, test]: &[Digits; 2]) -> Result<f64> {
    let file = trained.logdir().map(|dir| dir.join("embedding.png"));
    let predictor = trained.get_predictor(&["image"], &["embedding"])?;
    let references = embed(&predictor, train, REFERENCES, loss.group())?;
    let tests = embed(&predictor, test, TEST, loss.group())?;
    let right = tests.iter().filter(|&&(point, class)| classify(point, &references) == class).count();
    if let Some(file) = file {
        pictures::save_grid(&file, &draw(&tests)?, 1)?;
    }
    Ok(right as f64 / tests.len() as f64)
}

fn main() -> Result<()> {
    let Args { train: args, loss } = tensorpack::command_line::parse_without(&["--fake", "--find-lr"])?;
    let data = digits::load(args.assert)?;
    let train = ByClass::new(data[0].clone())?;
    let epochs = if args.full { 50 } else { 5 };
    let groups = (BATCH / loss.group()) as u64;
    let nothing = FromFn::new(STEPS * groups, |_| Ok(Vec::new()));
    let flow = nothing.map_random(move |_, rng| train.group(loss, rng)).batch(groups as usize);
    let config =
        TrainConfig::new(Embedding { loss, epochs }, flow).callback(ModelSaver::new()).max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let accuracy = evaluate(trained, loss, &data)?;
    say!("accuracy of {NEIGHBORS} nearest neighbors: {:.2} %", 100.0 * accuracy);
    if args.assert && accuracy < TARGET {
        return Err(Error::argument(format!("the accuracy is below {:.2} %", 100.0 * TARGET)));
    }
    Ok(())
}
