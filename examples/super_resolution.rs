//! Super-resolution by 2 with sub-pixel convolution (ESPCN; Shi et al., 2016): photographs of CIFAR-10
//! are halved to 16x16 pixels, and a small network restores them.
//!
//! `cargo run --release --example super_resolution` downloads CIFAR-10 and trains for 5 epochs of 500
//! steps. On 1,000 test images it reaches a peak signal-to-noise ratio of 27.54 dB; bicubic interpolation
//! has 26.62 dB. With `--assert` it fails if it is less than 0.7 dB better. It draws small images, bicubic
//! interpolation, its results and the originals to `restored.png` in its directory. `--full` trains for
//! 100 epochs.

mod pictures;

use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{Interpolation, resize};
use tensorpack::dataflow::{ComponentSpec, DataFlow, FakeData, Flow, RandomAccess, Sample};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The side of an image, and of a small one.
const SIDE: usize = 32;
const SMALL: usize = 16;
const STEPS: u64 = 500;
const BATCH: usize = 64;
const TEST: u64 = 1000;
/// Images in the picture.
const DRAWN: usize = 8;
/// The smallest gain over bicubic interpolation, in decibels, that `--assert` accepts.
const TARGET: f64 = 0.7;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(u8, [None, 32, 32, 3])]
    image: Tensor,
}

pub(crate) struct Espcn {
    pub(crate) epochs: u64,
}

impl Model for Espcn {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image }: Batch) -> Tensor {
        let image = image.cast(DType::F32) * (1.0 / 255.0);
        let small = image.average_pool(2).named("small");
        let parts = t.argscope(
            |conv: Conv2d| conv.relu(),
            |t| {
                LinearWrap::new(t, &small)
                    .layer("conv0", Conv2d::new(64, 5))
                    .layer("conv1", Conv2d::new(32, 3))
                    .layer("conv2", Conv2d::new(32, 3))
                    // Four pixels of three channels for each pixel of the small image.
                    .layer(
                        "conv3",
                        Conv2d::new(12, 3).activation(Activation::Identity).init(Init::Normal(0.0, 1e-3)),
                    )
                    .tensor()
            },
        );
        let restored = (small.resize_bilinear([SIDE, SIDE]) + pixel_shuffle(&parts)).clip(0.0, 1.0);
        let restored = restored.named("restored");
        let errors = (restored - image).square().mean_axes(&[1, 2, 3]);
        let psnr = ((&errors + 1e-9).log() * (-10.0 / std::f64::consts::LN_10)).mean().named("psnr");
        let cost = errors.mean().named("mean_squared_error");
        t.moving_summary(&[&cost, &psnr]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(2e-3, 0.0, self.epochs * STEPS)).boxed()
    }
}

/// Makes 2x2 pixels of three channels from each pixel of twelve.
fn pixel_shuffle(x: &Tensor) -> Tensor {
    let parts = x.split_dim(3, &[2, 2, 3]);
    // [batch, y, x, dy, dx, channels] to [batch, y, dy, x, dx, channels].
    parts.transpose(&[0, 1, 3, 2, 4, 5]).merge_dims(1, 2).merge_dims(2, 2)
}

/// Returns training images and test images; random ones with `--fake`.
fn data(fake: bool) -> Result<[Flow; 2]> {
    if fake {
        let sample = [ComponentSpec::new(DType::U8, [SIDE, SIDE, 3])];
        return Ok([50_000, TEST].map(|size| FakeData::new(size, sample.clone()).into_flow()));
    }
    let image = |mut sample: Sample| {
        sample.truncate(1);
        Ok(sample)
    };
    let [train, test] = [cifar10::train()?, cifar10::test()?];
    Ok([train.map(image).into_flow(), test.take(TEST).map(image).into_flow()])
}

/// The peak signal-to-noise ratio of images in decibels: the mean over images with values from 0 to 1.
fn psnr(found: &[f32], expected: &[f32]) -> f64 {
    let area = SIDE * SIDE * 3;
    let ratios = found.chunks(area).zip(expected.chunks(area)).map(|(found, expected)| {
        let squares = found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2));
        -10.0 * (squares.sum::<f64>() / area as f64 + 1e-9).log10()
    });
    let ratios: Vec<f64> = ratios.collect();
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

/// Returns the ratios of the model and of bicubic interpolation on test images.
fn evaluate(trained: Trained) -> Result<(f64, f64)> {
    let file = trained.logdir().map(|dir| dir.join("restored.png"));
    let test = cifar10::test()?;
    let samples = (0..TEST).map(|i| test.get(i)).collect::<Result<Vec<Sample>>>()?;
    let images = pictures::stack::<u8>(samples.iter().map(|sample| &sample[0]))?;
    let expected: Vec<f32> = images.as_slice::<u8>()?.iter().map(|&x| f32::from(x) / 255.0).collect();
    let predictor = trained.get_predictor(&["image"], &["small", "restored"])?;
    let outputs = predictor.predict(&[&images])?;
    let (small, restored) = (outputs[0].as_slice::<f32>()?, outputs[1].as_slice::<f32>()?);
    let enlarged = |interpolation| {
        let images = small.chunks(SMALL * SMALL * 3).map(|image| {
            let image = HostTensor::new([SMALL, SMALL, 3], image.to_vec())?;
            let large = resize(&image, SIDE, SIDE, interpolation)?;
            Ok(large.as_slice::<f32>()?.iter().map(|x| x.clamp(0.0, 1.0)).collect::<Vec<f32>>())
        });
        images.collect::<Result<Vec<_>>>().map(|images| images.concat())
    };
    let bicubic = enlarged(Interpolation::Cubic)?;
    if let Some(file) = file {
        let rows = [&enlarged(Interpolation::Nearest)?, &bicubic, restored, &expected];
        let drawn = rows.map(|row| &row[..DRAWN * SIDE * SIDE * 3]).concat();
        pictures::save_grid(&file, &HostTensor::new([4 * DRAWN, SIDE, SIDE, 3], drawn)?, DRAWN)?;
    }
    Ok((psnr(restored, &expected), psnr(&bicubic, &expected)))
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Restores halved photographs", &["--find-lr"])?;
    if args.fake {
        args.without(&["--assert"])?;
    }
    let [train, test] = data(args.fake)?;
    let epochs = if args.full { 100 } else { 5 };
    let validation = ScalarStats::from_names(["mean_squared_error", "psnr"]);
    let config = TrainConfig::new(Espcn { epochs }, train.shuffle().batch(BATCH))
        .steps_per_epoch(STEPS)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test.batch(100), [validation]))
        .callback(MaxSaver::new("validation_psnr"))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;
    if args.fake {
        return Ok(());
    }
    let (restored, bicubic) = evaluate(trained)?;
    say!("restored: {restored:.2} dB; bicubic interpolation: {bicubic:.2} dB");
    if args.assert && restored < bicubic + TARGET {
        return Err(Error::argument(format!("less than {TARGET} dB better than bicubic interpolation")));
    }
    Ok(())
}
