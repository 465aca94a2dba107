//! A Wasserstein GAN with gradient penalty (Gulrajani et al., 2017) on MNIST padded to 32x32. The
//! gradient of the critic is part of its loss, so training it needs second derivatives; it is updated
//! five times as often as the generator.
//!
//! `cargo run --release --example gan_wgan_gp` trains for 48 epochs of 500 steps and writes an
//! image of samples after each. A classifier then recognizes 643 of 1,000 samples as digits with
//! confidence over 0.9, and finds all 10 classes; with `--assert` the example fails below 8 classes
//! or half of the samples.
//!
//! `--cifar` trains the paper's residual networks on CIFAR-10, which it downloads, and reports the score of
//! a classifier that it trains first: a model for GPUs. `--cifar --full` has the paper's 128 channels and
//! 50,000 steps, and reaches a score of 4.5, where random bytes have 1.1 and the test images 7.5; with
//! `--assert` it fails below 4.2.

pub(crate) mod gan;
pub(crate) mod gan_cifar;

use clap::Parser;
use gan::{GanModelDesc, GanTrainer, Losses};
use gan_cifar::{Classifier, ClassifierScore, Score};
use std::path::PathBuf;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 128;
/// The smallest score that `--cifar --full --assert` accepts.
const LEAST_SCORE: f64 = 4.2;
/// The weight of the penalty.
const PENALTY: f64 = 10.0;

/// The images, with the networks for them.
#[derive(Clone)]
pub(crate) enum Images {
    Mnist,
    /// With this many channels, and a learning rate.
    Cifar(usize, Schedule),
}

impl Images {
    fn generator(&self, t: &TowerContext, z: &Tensor) -> Tensor {
        match self {
            Images::Mnist => gan::generator(t, z),
            Images::Cifar(channels, _) => gan_cifar::generator(t, z, *channels),
        }
    }

    fn critic(&self, t: &TowerContext, images: &Tensor) -> Tensor {
        // The gradient of one image's score must not depend on other images: no batch norm in the critic.
        match self {
            Images::Mnist => gan::discriminator(t, images, |t, name, x| LayerNorm::new().apply(t, name, x)),
            Images::Cifar(channels, _) => gan_cifar::critic(t, images, *channels),
        }
    }

    /// Converts a batch to the generator's format.
    fn real(&self, batch: &Tensor) -> Tensor {
        match self {
            Images::Mnist => gan::real_images(batch),
            Images::Cifar(..) => gan_cifar::real_images(batch),
        }
    }
}

pub(crate) struct WganGp {
    pub(crate) batch: usize,
    pub(crate) images: Images,
}

impl GanModelDesc for WganGp {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![match self.images {
            Images::Mnist => gan::image_spec(),
            Images::Cifar(..) => gan_cifar::image_spec(),
        }]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let critic = |images: &Tensor| self.images.critic(t, images);
        let real = self.images.real(&inputs[0]);
        let fake = self.images.generator(t, &Random::normal(0.0, 1.0).shape(t.graph(), &[self.batch, Z]));
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
        match &self.images {
            Images::Mnist => Adam::new(1e-4).betas(0.5, 0.9).boxed(),
            Images::Cifar(_, rate) => Adam::new(rate.clone()).betas(0.0, 0.9).boxed(),
        }
    }
}

/// Trains a Wasserstein GAN with gradient penalty on MNIST or CIFAR-10.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// Train residual networks on CIFAR-10.
    #[arg(long)]
    cifar: bool,
    /// The run directory of the classifier of --cifar; without a completed run it is trained there.
    #[arg(long, value_name = "DIR", requires = "cifar", conflicts_with = "fake")]
    classifier: Option<PathBuf>,
}

fn main() -> Result<()> {
    let Args { train: args, cifar, classifier } =
        tensorpack::command_line::parse_without(&gan::NEED_ONE_COST)?;
    if cifar {
        return train_cifar(&args, classifier);
    }
    // The original's schedule is 200 epochs of 300 steps with 64 images each.
    let (batch, length) = if args.full { (64, (200, 300)) } else { (32, (48, 500)) };
    let model = WganGp { batch, images: Images::Mnist };
    let gan = GanTrainer::new(model, gan::data(&args, batch)?, &args)?;
    gan::add_samples(gan.graph(), Init::Normal(0.0, 1.0), Z, gan::generator)?;
    gan::run(&args, gan, length, |gan, config| gan.train_in_turn(config, 1, 5))
}

fn train_cifar(args: &TrainArgs, classifier: Option<PathBuf>) -> Result<()> {
    if args.assert && (!args.full || args.fake) {
        return Err(Error::argument("only --cifar --full has a stated result that --assert could check"));
    }
    // The paper's schedule is 500,000 steps.
    let (channels, batch, length) = if args.full { (128, 64, (100, 500)) } else { (32, 32, (20, 250)) };
    let rate = Schedule::polynomial(2e-4, 0.0, length.0 * length.1, 1.0);
    let images = Images::Cifar(channels, rate);
    let input = gan_cifar::data(args, batch)?;
    let generator = move |t: &TowerContext, z: &Tensor| gan_cifar::generator(t, z, channels);
    let score = match gan_cifar::directory(args, classifier)? {
        None => None,
        Some(dir) => Some(ClassifierScore::new(Classifier::load(args, &dir)?, generator, Z)),
    };
    let scale = score.as_ref().map(ClassifierScore::scale).transpose()?;
    let gan = GanTrainer::new(WganGp { batch, images }, input, args)?;
    gan::add_samples(gan.graph(), Init::Normal(0.0, 1.0), Z, generator)?;
    let trained = gan::train(args, gan, length, |gan, config| {
        let config = match score {
            Some(score) => config.callback(score),
            None => config,
        };
        gan.train_in_turn(config, 1, 5)
    })?;

    let Some([test, noise]) = scale else { return Ok(()) };
    let latest =
        |name: &str| trained.monitors.latest(name).ok_or_else(|| Error::argument("no epoch was trained"));
    let (mean, deviation) = (latest("classifier_score")?, latest("classifier_score_std")?);
    let samples = Score { mean, deviation };
    say!("classifier score {samples} of 10,000 samples; {test} of the test images, {noise} of noise");
    if args.assert && samples.mean < LEAST_SCORE {
        return Err(Error::argument(format!("the score is below {LEAST_SCORE}")));
    }
    Ok(())
}
