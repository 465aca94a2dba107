//! A spatial transformer (Jaderberg et al., 2015): a network learns where to look at digits that are
//! rotated, scaled and shifted in a larger image, from their classes alone.
//!
//! `cargo run --release --example spatial_transformer` distorts MNIST, or generated digits if that
//! cannot be downloaded, trains for 6 epochs of 300 steps and reaches a test error of 5.6 %. With
//! `--assert` it needs MNIST and fails above 7 %. `--no-transformer` gives the whole image to the
//! classifier; `--full` trains for 60 epochs. It draws test images and what the classifier sees of them
//! to `patches.png` in its directory.

mod digits;
mod pictures;

use clap::Parser;
use digits::Digits;
use tensorpack::dataflow::{DataFlow, Flow, FromFn, RandomAccess, Sample, SampleRng, Seed};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The side of a distorted image, and of what the transformer cuts out of it.
const IMAGE: usize = 42;
const PATCH: usize = 28;
const DIGIT: usize = 28;
const STEPS: u64 = 300;
const BATCH: usize = 64;
/// The largest test error that `--assert` accepts.
const TARGET: f64 = 0.07;

/// Trains a classifier of distorted digits with a spatial transformer
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// Classify the whole image
    #[arg(long)]
    no_transformer: bool,
}

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(f32, [None, 42, 42])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

pub(crate) struct Classifier {
    pub(crate) transforms: bool,
    pub(crate) epochs: u64,
}

/// Returns the six numbers of an affine map for each image: the patch's coordinates, from -1 to 1, to
/// those of the image.
fn localize(t: &TowerContext, image: &Tensor) -> Tensor {
    // At the start, the patch is the middle of the image at its own scale.
    let scale = PATCH as f32 / IMAGE as f32;
    let start = HostTensor::new([6], vec![scale, 0.0, 0.0, 0.0, scale, 0.0]).expect("six numbers");
    let small = LinearWrap::new(t, image)
        .apply(|x| x.average_pool(2))
        .layer("conv0", Conv2d::new(20, 5).relu())
        .apply(|x| x.max_pool(2))
        .layer("conv1", Conv2d::new(20, 5).relu())
        .layer("fc0", Linear::new(32).relu())
        // Small weights: the map begins near its start for every image.
        .layer("fc1", Linear::new(6).no_bias().init(Init::Normal(0.0, 1e-3)))
        .tensor();
    small + t.variable(VariableSpec::new("start", [6]).init(Init::Value(start))).value()
}

/// Cuts the patches of affine maps out of images.
fn transform(image: &Tensor, map: &Tensor) -> Tensor {
    // The centers of the patch's pixels, as rows (x, y, 1).
    let center = |i: usize| (2 * i + 1) as f32 / PATCH as f32 - 1.0;
    let points = (0..PATCH * PATCH).flat_map(|i| [center(i % PATCH), center(i / PATCH), 1.0]);
    let points = HostTensor::new([PATCH, PATCH, 3], points.collect::<Vec<f32>>()).expect("a point per pixel");
    let graph = image.graph();
    let grid = graph.einsum("bij,yxj->byxi", &[map.split_dim(1, &[2, 3]), graph.constant(points)]);
    image.grid_sample(&grid)
}

impl Model for Classifier {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let image = image.expand_dims(3);
        let patch = match self.transforms {
            true => transform(&image, &t.scope("locate", |t| localize(t, &image))),
            false => image.clone(),
        };
        let patch = patch.named("patch");
        let logits = LinearWrap::new(t, &patch)
            .layer("conv0", Conv2d::new(16, 5).stride(2).relu())
            .layer("conv1", Conv2d::new(32, 3).relu())
            .apply(|x| x.max_pool(2))
            .layer("fc0", Linear::new(128).relu())
            .layer("fc1", Linear::new(10))
            .tensor();
        let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let wrong = logits.argmax(-1).not_equal(&label.cast(DType::I64)).cast(DType::F32);
        let error = wrong.mean().named("error");
        t.moving_summary(&[&cost, &error]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(1e-3, 0.0, self.epochs * STEPS)).process(GlobalNormClip::new(1.0)).boxed()
    }
}

/// Draws a digit that is rotated by up to 60 degrees, scaled by 0.7 to 1.2 and shifted, but whole.
fn distorted(source: &Digits, index: u64, rng: &mut SampleRng) -> Result<Sample> {
    let mut digit = source.get(index)?;
    let pixels = digit[0].as_slice::<f32>()?;
    let (sin, cos) = rng.uniform_range(-60f64, 60.0).to_radians().sin_cos();
    let scale = rng.uniform_range(0.7, 1.2);
    let (side, half) = (DIGIT as f64, 0.5 * DIGIT as f64);
    // A digit's strokes are in the middle 20 pixels.
    let room = 0.5 * (IMAGE as f64 - 20.0 * scale);
    let center = 0.5 * IMAGE as f64;
    let (x0, y0) = (center + rng.uniform_range(-room, room), center + rng.uniform_range(-room, room));
    let at = |x: f64, y: f64| {
        let inside = (0.0..side).contains(&x) && (0.0..side).contains(&y);
        if inside { f64::from(pixels[y as usize * DIGIT + x as usize]) } else { 0.0 }
    };
    let mut image = vec![0f32; IMAGE * IMAGE];
    for (i, out) in image.iter_mut().enumerate() {
        let (x, y) = ((i % IMAGE) as f64 + 0.5 - x0, (i / IMAGE) as f64 + 0.5 - y0);
        // Bilinear, between pixel centers.
        let (x, y) = ((cos * x + sin * y) / scale + half - 0.5, (cos * y - sin * x) / scale + half - 0.5);
        let (left, top) = (x.floor(), y.floor());
        let row = |y: f64| at(left, y) * (left + 1.0 - x) + at(left + 1.0, y) * (x - left);
        *out = (row(top) * (top + 1.0 - y) + row(top + 1.0) * (y - top)) as f32;
    }
    digit[0] = HostTensor::new([IMAGE, IMAGE], image)?;
    Ok(digit)
}

/// Returns a test image, which is distorted the same way in every run.
fn test_image(source: &Digits, index: u64) -> Result<Sample> {
    distorted(source, index, &mut Seed::new(0).derive("test images").rng(0, index))
}

/// Returns training images, which are distorted anew in every epoch, and test images.
fn data(train: Digits, test: Digits) -> [Flow; 2] {
    let nothing = FromFn::new(STEPS * BATCH as u64, |_| Ok(Vec::new()));
    let train = nothing.map_random(move |_, rng| distorted(&train, rng.below(train.len()), rng));
    let test = FromFn::new(test.len().min(5000), move |i| test_image(&test, i));
    [train.into_flow(), test.into_flow()]
}

fn main() -> Result<()> {
    let Args { train: args, no_transformer } =
        tensorpack::command_line::parse_without(&["--fake", "--find-lr"])?;
    let [train, images] = digits::load(args.assert)?;
    let [train, test] = data(train, images.clone());
    let epochs = if args.full { 60 } else { 6 };
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let model = Classifier { transforms: !no_transformer, epochs };
    let config = TrainConfig::new(model, train.batch(BATCH))
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test.batch(250), [validation]))
        .callback(MinSaver::new("validation_error"))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    if args.assert && error > TARGET {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * TARGET)));
    }
    save_patches(trained, &images)
}

/// Draws ten test images above what the classifier sees of them.
fn save_patches(trained: Trained, test: &Digits) -> Result<()> {
    let Some(file) = trained.logdir().map(|dir| dir.join("patches.png")) else { return Ok(()) };
    let samples = (0..10).map(|i| test_image(test, i)).collect::<Result<Vec<Sample>>>()?;
    let images = pictures::stack::<f32>(samples.iter().map(|sample| &sample[0]))?;
    let patches = trained.get_predictor(&["image"], &["patch"])?.predict(&[&images])?.swap_remove(0);
    // On a canvas of the size of the images.
    let side = patches.sizes()[1];
    let margin = (IMAGE - side) / 2;
    let mut canvas = vec![0f32; 10 * IMAGE * IMAGE];
    for (i, row) in patches.as_slice::<f32>()?.chunks(side).enumerate() {
        let start = (i / side * IMAGE + margin + i % side) * IMAGE + margin;
        canvas[start..start + side].copy_from_slice(row);
    }
    let both = [images.as_slice::<f32>()?, &canvas].concat();
    pictures::save_grid(&file, &HostTensor::new([20, IMAGE, IMAGE, 1], both)?, 10)
}
