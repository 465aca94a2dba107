//! A Wasserstein GAN with gradient penalty (Gulrajani et al., 2017) on MNIST padded to 32x32. The
//! gradient of the critic is part of its loss, so training it needs second derivatives; it is updated
//! five times as often as the generator.
//!
//! `cargo run --release --example gan_wgan_gp` trains for 48 epochs of 500 steps and writes an
//! image of samples after each. A classifier then recognizes 626 of 1,000 samples as digits with
//! confidence over 0.9, and finds all 10 classes; with `--assert` the example fails below 8 classes
//! or half of the samples.

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 128;
/// The weight of the penalty.
const PENALTY: f64 = 10.0;

struct WganGp {
    batch: usize,
}

impl GanModelDesc for WganGp {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        // The gradient of one image's score must not depend on other images: no batch norm in the critic.
        let critic =
            |images: &Tensor| gan::discriminator(t, images, |t, name, x| LayerNorm::new().apply(t, name, x));
        let real = gan::real_images(&inputs[0]);
        let fake = gan::generator(t, &Random::normal(0.0, 1.0).shape(t.graph(), &[self.batch, Z]));
        let (on_real, on_fake) = (critic(&real), critic(&fake));

        // The penalty pulls the gradient norm to 1 on the lines between real images and fakes.
        let along = Random::uniform(0.0, 1.0).shape(t.graph(), &[self.batch, 1, 1, 1]);
        let between = &real + along * (&fake - &real);
        let slope = critic(&between).sum().gradient(&between);
        let length = (slope.square().sum_axes(&[1, 2, 3]) + 1e-12).sqrt();
        let penalty = (&length - 1.0).square().mean().named("penalty");
        t.moving_summary(&[&length.mean().named("slope"), &penalty]);
        Losses::wasserstein(t, &on_real, &on_fake, Some(&(penalty * PENALTY)))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-4).betas(0.5, 0.9).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a Wasserstein GAN with gradient penalty on MNIST", &[])?;
    // The original's schedule is 200 epochs of 300 steps with 64 images each.
    let (batch, length) = if args.full { (64, (200, 300)) } else { (32, (48, 500)) };
    let gan = GanTrainer::new(WganGp { batch }, gan::data(&args, batch)?, &args)?;
    gan::add_samples(gan.graph(), Init::Normal(0.0, 1.0), Z, gan::generator)?;
    gan::run(&args, gan, length, |gan, config| gan.train_in_turn(config, 1, 5))
}
