//! A Wasserstein GAN with clipped weights (Arjovsky et al., 2017) on MNIST padded to 32x32. The critic's
//! weights are clipped after each of its updates, which bounds its slope; it is updated three times as
//! often as the generator.
//!
//! `cargo run --release --example gan_wgan` trains for 24 epochs of 500 steps and writes an image of
//! samples after each. A classifier then judges 1,000 samples; with `--assert` the example fails below 8
//! classes, or if fewer than half of the samples count as digits.

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 100;
/// The largest weight of the critic.
const LARGEST: f64 = 0.01;

struct Wgan {
    batch: usize,
}

impl GanModelDesc for Wgan {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]);
        let fake = gan::generator(t, &z);
        let critic =
            |images: &Tensor| gan::discriminator(t, images, |t, name, x| BatchNorm::new().apply(t, name, x));
        let no_penalty = t.graph().constant(HostTensor::scalar(0f32));
        Losses::wasserstein(t, &critic(&gan::real_images(&inputs[0])), &critic(&fake), &no_penalty)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        PostProcess::new(RmsProp::new(2e-4), |variable, w| {
            // Scale and shift of batch normalization do not change the direction of the slope.
            let clipped = variable.name().starts_with("discrim/") && variable.name().ends_with("/W");
            clipped.then(|| w.clip(-LARGEST, LARGEST))
        })
        .boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a Wasserstein GAN with clipped weights on MNIST", &[])?;
    // The original's schedule is 200 epochs of 500 steps with 64 images each.
    let (batch, length) = if args.full { (64, (200, 500)) } else { (32, (24, 500)) };
    let gan = GanTrainer::new(Wgan { batch }, gan::data(&args, batch)?, gan::towers(&args)?)?;
    gan::add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z, gan::generator)?;
    gan::run(&args, gan, length, |gan, config| gan.train_in_turn(config, 1, 3))
}
