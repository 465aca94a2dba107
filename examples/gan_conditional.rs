//! A conditional GAN (Mirza and Osindero, 2014) on MNIST padded to 32x32: generator and discriminator
//! also get the class, so the generator draws the digit it is asked for.
//!
//! `cargo run --release --example gan_conditional` trains for 8 epochs of 500 steps and writes an image
//! of samples after each; the digits 0 to 9 follow one another. A classifier then recognizes 858 of
//! 1,000 samples as digits with confidence over 0.9; 816 of them are the digit that was asked for. With
//! `--assert` the example fails below 8 classes, if fewer than half of the samples count as digits,
//! or if fewer than 90 % of those are the digit that was asked for.

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 100;
/// The smallest share of samples of the right class that `--assert` accepts.
const TARGET: f64 = 0.9;

struct Conditional {
    batch: usize,
}

impl GanModelDesc for Conditional {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec(), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let class = inputs[1].one_hot(gan::CODES, DType::F32);
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]);
        let fake = gan::generator(t, &gan::with_code(&z, &class));
        // Each class is a channel of the image, which is one everywhere.
        let planes = class.expand_dims(1).expand_dims(1).tile(&[1, 32, 32, 1]);
        let look = |images: &Tensor| {
            let conditioned = t.graph().concat(&[images, &planes], 3);
            gan::discriminator(t, &conditioned, |t, name, x| BatchNorm::new().apply(t, name, x))
        };
        Losses::cross_entropy(t, &look(&gan::real_images(&inputs[0])), &look(&fake))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(2e-4).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a conditional GAN on MNIST", &gan::NEED_ONE_COST)?;
    // The original's schedule is 100 epochs of 500 steps with 128 images each.
    let (batch, length) = if args.full { (128, (100, 500)) } else { (64, (8, 500)) };
    let input = gan::labeled_data(&args, batch)?;
    let gan = GanTrainer::new(Conditional { batch }, input, &args)?;
    gan::add_coded_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z)?;
    let trained = gan::train(&args, gan, length, |gan, config| gan.train_together(config))?;

    let recognized = gan::judge(&args, &trained, &gan::Bar::USUAL)?;
    let digits: Vec<(usize, usize)> =
        recognized.iter().enumerate().filter_map(|(i, class)| Some((i, (*class)?))).collect();
    let right = digits.iter().filter(|&&(i, class)| gan::sample_code(i) == class).count();
    say!("{right} of {} digits are what was asked for", digits.len());
    if args.assert && (right as f64) < TARGET * digits.len() as f64 {
        return Err(Error::argument(format!("fewer than {:.0} % are the right digit", 100.0 * TARGET)));
    }
    Ok(())
}
