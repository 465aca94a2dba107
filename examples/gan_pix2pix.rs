//! Image-to-image translation with a conditional GAN (pix2pix; Isola et al., 2017) on drawn pairs: the
//! model colors the outlines of rectangles red, of ellipses green and of triangles blue. The generator is
//! a U-Net; the discriminator sees outlines and colors and judges patches of 16x16 pixels or more.
//!
//! `cargo run --release --example gan_pix2pix` trains for 12 epochs of 500 steps and writes an image of
//! test outlines, outputs and true partners after each. Of 200 test pairs, 99.9 % of pixels get the right
//! color, and the mean intersection over union of the three colors is 0.991; filling with one color has
//! 87.0 % and 0.111. With `--assert` it fails below 0.9. `--full` trains for the original's 300 epochs,
//! with single pairs.

mod gan;
mod pairs;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::callback::ScheduledHyperParamSetter;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The channels of the first layers.
const CHANNELS: usize = 16;
/// The weight of the distance from the true partner.
const LAMBDA: f64 = 100.0;
/// The smallest mean intersection over union that `--assert` accepts.
const TARGET: f64 = 0.9;

#[derive(Clone, Copy)]
struct Pix2Pix {
    /// Pairs in a batch.
    batch: usize,
}

impl Pix2Pix {
    /// Normalizes with the statistics of the batch in training, and with running ones in the evaluation.
    /// Batches of one pair have their own in both, as in the original.
    fn norm(self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        match self.batch {
            1 => InstanceNorm::new().apply(t, name, x),
            _ => BatchNorm::new().apply(t, name, x),
        }
    }

    /// The generator, a U-Net: from outlines `[batch, 32, 32, 1]` to pictures `[batch, 32, 32, 3]`, both
    /// from -1 to 1.
    fn generator(self, t: &TowerContext, outline: &Tensor) -> Tensor {
        let init = || Init::Normal(0.0, 0.02);
        let sizes = [CHANNELS, 2 * CHANNELS, 4 * CHANNELS, 4 * CHANNELS];
        t.auto_reuse(|t| {
            t.scope("gen", |t| {
                // Down to 2x2, and up again; each size also sees what was found on the way down.
                let mut down =
                    vec![Conv2d::new(sizes[0], 4).stride(2).init(init()).apply(t, "down0", outline)];
                for (i, &channels) in sizes.iter().enumerate().skip(1) {
                    let conv = Conv2d::new(channels, 4).stride(2).init(init());
                    let x = conv.apply(t, &format!("down{i}"), &down[i - 1].leaky_relu(0.2));
                    down.push(self.norm(t, &format!("down_norm{i}"), &x));
                }
                let mut x = down[sizes.len() - 1].relu();
                for i in (0..sizes.len() - 1).rev() {
                    let up = Conv2dTranspose::new(sizes[i], 4).stride(2).init(init());
                    let y = self.norm(t, &format!("up_norm{i}"), &up.apply(t, &format!("up{i}"), &x));
                    // Dropout is the only noise.
                    let y = if i + 2 == sizes.len() { Dropout::new(0.5).apply(t, "dropout", &y) } else { y };
                    x = t.graph().concat(&[&y, &down[i]], 3).relu();
                }
                let up = Conv2dTranspose::new(3, 4).stride(2).init(init()).activation(Activation::Tanh);
                up.apply(t, "out", &x)
            })
        })
    }

    /// The discriminator: a logit for each of 8x8 patches of pictures with their outlines.
    fn discriminator(self, t: &TowerContext, outline: &Tensor, picture: &Tensor) -> Tensor {
        let conv = |channels: usize| Conv2d::new(channels, 4).init(Init::Normal(0.0, 0.02));
        let both = t.graph().concat(&[outline, picture], 3);
        t.auto_reuse(|t| {
            t.scope("discrim", |t| {
                let x = conv(CHANNELS).stride(2).apply(t, "conv0", &both).leaky_relu(0.2);
                let x = conv(2 * CHANNELS).stride(2).apply(t, "conv1", &x);
                let x = self.norm(t, "norm1", &x).leaky_relu(0.2);
                let x = conv(4 * CHANNELS).apply(t, "conv2", &x);
                let x = self.norm(t, "norm2", &x).leaky_relu(0.2);
                conv(1).apply(t, "out", &x)
            })
        })
    }
}

impl GanModelDesc for Pix2Pix {
    fn inputs(&self) -> Vec<TensorSpec> {
        pairs::pair_specs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let [outline, colored] = [0, 1].map(|i| pairs::to_signed(&inputs[i]));
        let made = self.generator(t, &outline);
        let look = |picture: &Tensor| self.discriminator(t, &outline, picture);
        let Losses { d_loss, g_loss } = Losses::cross_entropy(t, &look(&colored), &look(&made));
        let distance = (made - colored).abs().mean().named("distance");
        t.moving_summary(&[&distance]);
        Losses { d_loss, g_loss: g_loss + distance * LAMBDA }
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(t.hyper_param("learning_rate", 2e-4)).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args =
        TrainArgs::parse_program("Colors outlines with a conditional GAN (pix2pix)", &gan::NEED_ONE_COST)?;
    let train = pairs::Pairs::train();
    // The original's schedule is 300 passes over single pairs, the last 100 at half the learning rate.
    let (batch, length) =
        if args.full { (1, (300, train.clone().size().unwrap_or(1))) } else { (16, (12, 500)) };
    let input = match args.fake {
        true => DummyConstantInput::new([vec![batch, 32, 32, 1], vec![batch, 32, 32, 3]]).boxed(),
        false => QueueInput::new(train.shuffle().batch(batch)).boxed(),
    };
    let model = Pix2Pix { batch };
    let gan = GanTrainer::new(model, input, &args)?;
    pairs::add_outputs(gan.graph(), |t, outline| model.generator(t, outline))?;
    let trained = gan::train(&args, gan, length, |gan, config| {
        let rate = ScheduledHyperParamSetter::new("learning_rate", [(200, 1e-4)]);
        gan.train_together(config.callback(rate))
    })?;
    pairs::judge(&args, &trained, TARGET)
}
