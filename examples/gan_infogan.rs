//! InfoGAN (Chen et al., 2016) on MNIST padded to 32x32: the generator gets one of ten codes, and the
//! discriminator has a second output that must tell it from the image. Without labels, the codes come to
//! mean digits.
//!
//! `cargo run --release --example gan_infogan` trains for 8 epochs of 500 steps and writes an image of
//! samples after each; the ten codes follow one another. A classifier then recognizes 697 of 1,000
//! samples as digits with confidence over 0.9; 458 of them are the digit that their code stands for. With
//! `--assert` the example fails below 8 classes, if fewer than half of the samples count as digits, or if
//! fewer than 60 % of those are the digit that their code stands for most often.

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The length of the noise vector.
const Z: usize = 62;
/// The smallest share of samples that `--assert` accepts.
const TARGET: f64 = 0.6;

struct InfoGan {
    batch: usize,
}

impl GanModelDesc for InfoGan {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let drawn = Random::uniform(0.0, gan::CODES as f64).shape(t.graph(), &[self.batch]);
        let code = drawn.floor().clip(0.0, (gan::CODES - 1) as f64).cast(DType::I32);
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]);
        let fake = gan::generator(t, &gan::with_code(&z, &code.one_hot(gan::CODES, DType::F32)));
        let look = |images: &Tensor| {
            gan::discriminator_features(t, images, |t, name, x| BatchNorm::new().apply(t, name, x))
        };
        let (on_real, on_fake) = (look(&gan::real_images(&inputs[0])), look(&fake));
        let score = |features: &Tensor| gan::head(t, "out", 1, features);
        let Losses { d_loss, g_loss } = Losses::cross_entropy(t, &score(&on_real), &score(&on_fake));
        // A lower bound of the mutual information of code and image, up to a constant.
        let guess = gan::head(t, "code", gan::CODES, &on_fake);
        let information = guess.sparse_softmax_cross_entropy(&code).mean().named("code_loss");
        t.moving_summary(&[&information]);
        Losses { d_loss: d_loss + &information, g_loss: g_loss + information }
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(2e-4).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains an InfoGAN on MNIST", &gan::NEED_ONE_COST)?;
    // The original's schedule is 100 epochs of 500 steps with 128 images each.
    let (batch, length) = if args.full { (128, (100, 500)) } else { (64, (8, 500)) };
    let gan = GanTrainer::new(InfoGan { batch }, gan::data(&args, batch)?, &args)?;
    gan::add_coded_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z)?;
    let trained = gan::train(&args, gan, length, |gan, config| gan.train_together(config))?;

    let mut counts = [[0; 10]; gan::CODES];
    for (i, class) in gan::judge(&args, &trained, &gan::Bar::USUAL)?.into_iter().enumerate() {
        class.into_iter().for_each(|class| counts[gan::sample_code(i)][class] += 1);
    }
    let digits: usize = counts.iter().flatten().sum();
    let usual: usize = counts.iter().map(|of_code| *of_code.iter().max().expect("ten classes")).sum();
    say!("{usual} of {digits} digits are what their code stands for");
    if args.assert && (usual as f64) < TARGET * digits as f64 {
        return Err(Error::argument(format!(
            "codes stand for a digit in fewer than {:.0} %",
            100.0 * TARGET
        )));
    }
    Ok(())
}
