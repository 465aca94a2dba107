//! BEGAN (Berthelot et al., 2017) on MNIST padded to 32x32. The discriminator is an auto-encoder: real images
//! should be reconstructed well and fakes badly. A variable `k` balances the two, and `measure` says how far
//! training has converged; both are statistics.
//!
//! `cargo run --release --example gan_began` trains for 10 epochs of 500 steps and writes an image of samples
//! after each. A classifier then recognizes 533 of 1,000 samples as digits with confidence over 0.9, and
//! finds 6 classes; with `--assert` the example fails below 5 classes or half of the samples.

mod gan;

use gan::{Bar, GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The length of the noise vector, and of the code between the two halves of the auto-encoder.
const Z: usize = 32;
/// The error of fakes divided by that of real images, which the balance aims at. The paper's are at most 1, but
/// then most samples are ones: their error is the smallest.
const GAMMA: f64 = 1.2;
/// How fast the balance moves. The paper has 0.001, and many times as many steps.
const RATE: f64 = 0.02;
/// Lower than for the other GANs: see `docs/gans.md`.
const BAR: Bar = Bar { classes: 5, percent: 50 };

struct Began {
    batch: usize,
    learning_rate: Schedule,
}

/// The generator: from noise to images. Its variables are under `gen/`.
fn generator(t: &TowerContext, z: &Tensor) -> Tensor {
    t.auto_reuse(|t| t.scope("gen", |t| decoder(t, 32, z)))
}

/// The auto-encoder: images from their codes. Its variables are under `discrim/`.
fn reconstruction(t: &TowerContext, images: &Tensor) -> Tensor {
    t.auto_reuse(|t| {
        t.scope("discrim", |t| {
            let code = t.scope("encoder", |t| encoder(t, 16, images));
            // An output in -1 to 1 cannot reconstruct every image, only those that look like digits.
            t.scope("decoder", |t| decoder(t, 16, &code)).tanh()
        })
    })
}

/// Returns codes of images, with this many channels after the first layer.
fn encoder(t: &TowerContext, channels: usize, images: &Tensor) -> Tensor {
    let down = |channels: usize| Conv2d::new(channels, 4).stride(2).activation(Activation::Elu);
    let x = down(channels).apply(t, "down0", images);
    let x = down(2 * channels).apply(t, "down1", &x);
    Linear::new(Z).apply(t, "code", &x)
}

/// Returns images `[batch, 32, 32, 1]` of codes, with this many channels before the last layer. Upsampling by
/// repeated pixels and no transposed convolutions, as in the paper.
fn decoder(t: &TowerContext, channels: usize, codes: &Tensor) -> Tensor {
    let conv = |channels: usize| Conv2d::new(channels, 3).activation(Activation::Elu);
    let x = Linear::new(8 * 8 * 2 * channels).activation(Activation::Elu).apply(t, "fc", codes);
    let x = x.reshape(&[-1, 8, 8, 2 * channels as isize]);
    let x = conv(2 * channels).apply(t, "conv0", &x).resize_nearest([16, 16]);
    let x = conv(channels).apply(t, "conv1", &x).resize_nearest([32, 32]);
    Conv2d::new(1, 3).apply(t, "out", &x)
}

impl GanModelDesc for Began {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let real = gan::real_images(&inputs[0]);
        let fake = generator(t, &Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]));
        // The root mean square of each image, so that an image with much ink does not count much more.
        let error = |images: &Tensor| {
            let squares = (reconstruction(t, images) - images).square().mean_axes(&[1, 2, 3]);
            (squares + 1e-6).sqrt().mean()
        };
        Losses::boundary_equilibrium(t, [&error(&real), &error(&fake)], GAMMA, RATE)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(self.learning_rate.clone()).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program(
        "Trains a BEGAN on MNIST, with an auto-encoder as discriminator",
        &gan::NEED_ONE_COST,
    )?;
    // The original's schedule is 400 epochs of 500 steps with 32 images each, at a learning rate of 1e-4.
    let (learning_rate, length) = match args.full {
        true => (Schedule::constant(1e-4), (400, 500)),
        false => (Schedule::polynomial(7e-4, 3.5e-5, 10 * 500, 1.0), (10, 500)),
    };
    let batch = 32;
    let model = Began { batch, learning_rate };
    let gan = GanTrainer::new(model, gan::data(&args, batch)?, &args)?;
    gan::add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z, generator)?;
    // An auto-encoder that learns as fast as the generator leaves it nothing to gain.
    let trained = gan::train(&args, gan, length, |gan, config| gan.train_in_turn(config, 2, 1))?;
    gan::judge(&args, &trained, &BAR).map(|_| ())
}
