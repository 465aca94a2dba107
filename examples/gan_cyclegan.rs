//! CycleGAN (Zhu et al., 2017) on drawn pictures: one network colors outlines of rectangles, ellipses and
//! triangles, and another draws the outlines of colored shapes. Neither ever sees a pair: each must fool
//! a discriminator, and together they must return to where they started.
//!
//! `cargo run --release --example gan_cyclegan` trains for 40 epochs of 300 steps and writes an image of
//! test outlines, outputs and true partners after each. The result depends on rounding: the mean
//! intersection over union of the three colors in 200 test pairs was 0.547, and is 0.189 with the kernels
//! of today; filling with one color has 0.111. With `--assert` it fails below 0.45. `--full` trains
//! larger networks for the original's 195 epochs, with single pictures.

mod gan;
mod pairs;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::callback::ScheduledHyperParamSetter;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The weight of the distance between a picture and what comes back.
const LAMBDA: f64 = 10.0;
/// The smallest mean intersection over union that `--assert` accepts.
const TARGET: f64 = 0.45;

/// The sizes of the networks.
#[derive(Clone, Copy)]
struct Sizes {
    /// The channels of the first layers.
    channels: usize,
    /// The residual blocks of a generator.
    blocks: usize,
}

impl Sizes {
    /// A generator: from pictures to pictures with this many channels, both from -1 to 1.
    fn generator(self, t: &TowerContext, name: &str, channels: usize, x: &Tensor) -> Tensor {
        let n = self.channels;
        let norm = |t: &TowerContext, name: &str, x: &Tensor| {
            InstanceNorm::new().apply(t, &format!("{name}_norm"), x)
        };
        let init = || Init::Normal(0.0, 0.02);
        let conv = |t: &TowerContext, name: &str, layer: Conv2d, x: &Tensor| {
            norm(t, name, &layer.init(init()).apply(t, name, x))
        };
        let up = |t: &TowerContext, name: &str, channels: usize, x: &Tensor| {
            let layer = Conv2dTranspose::new(channels, 3).stride(2).init(init());
            norm(t, name, &layer.apply(t, name, x)).relu()
        };
        t.auto_reuse(|t| {
            t.scope(&format!("gen/{name}"), |t| {
                let x = conv(t, "conv0", Conv2d::new(n, 7), x).relu();
                let x = conv(t, "conv1", Conv2d::new(2 * n, 3).stride(2), &x).relu();
                let mut x = conv(t, "conv2", Conv2d::new(4 * n, 3).stride(2), &x).relu();
                for i in 0..self.blocks {
                    let y = conv(t, &format!("block{i}.0"), Conv2d::new(4 * n, 3), &x).relu();
                    x = x + conv(t, &format!("block{i}.1"), Conv2d::new(4 * n, 3), &y);
                }
                let x = up(t, "up0", 2 * n, &x);
                let x = up(t, "up1", n, &x);
                Conv2d::new(channels, 7).activation(Activation::Tanh).apply(t, "out", &x)
            })
        })
    }

    /// A discriminator: scores of patches, near 1 for real ones.
    fn discriminator(self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        let n = self.channels;
        let norm = InstanceNorm::new();
        let conv = |channels: usize| Conv2d::new(channels, 4).init(Init::Normal(0.0, 0.02));
        t.auto_reuse(|t| {
            t.scope(&format!("discrim/{name}"), |t| {
                let x = conv(n).stride(2).apply(t, "conv0", x).leaky_relu(0.2);
                let x = norm.apply(t, "norm1", &conv(2 * n).stride(2).apply(t, "conv1", &x));
                let x = norm.apply(t, "norm2", &conv(4 * n).apply(t, "conv2", &x.leaky_relu(0.2)));
                conv(1).apply(t, "out", &x.leaky_relu(0.2))
            })
        })
    }
}

/// Returns the generator that colors outlines.
fn colorize(sizes: Sizes) -> impl Fn(&TowerContext, &Tensor) -> Tensor {
    move |t, outline| sizes.generator(t, "colorize", 3, outline)
}

struct CycleGan {
    sizes: Sizes,
}

impl GanModelDesc for CycleGan {
    fn inputs(&self) -> Vec<TensorSpec> {
        pairs::pair_specs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let sizes = self.sizes;
        let [outline, colored] = [0, 1].map(|i| pairs::to_signed(&inputs[i]));
        let colorize = colorize(sizes);
        let draw = |colored: &Tensor| sizes.generator(t, "draw", 1, colored);
        let (made_colored, made_outline) = (colorize(t, &outline), draw(&colored));

        let cycle = (draw(&made_colored) - &outline).abs().mean()
            + (colorize(t, &made_outline) - &colored).abs().mean();
        let cycle = cycle.named("cycle_loss");
        // Least squares: 1 for real pictures, 0 for others.
        let play = |name: &str, real: &Tensor, made: &Tensor| {
            let look = |x: &Tensor| sizes.discriminator(t, name, x);
            let (on_real, on_made) = (look(real), look(made));
            let d = ((&on_real - 1.0).square().mean() + on_made.square().mean()) * 0.5;
            (d, (on_made - 1.0).square().mean())
        };
        let (d_colored, g_colored) = play("colored", &colored, &made_colored);
        let (d_outline, g_outline) = play("outline", &outline, &made_outline);
        let d_loss = (d_colored + d_outline).named("d_loss");
        let g_loss = (g_colored + g_outline).named("g_loss");
        t.moving_summary(&[&d_loss, &g_loss, &cycle]);
        Losses { d_loss, g_loss: g_loss + cycle * LAMBDA }
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(t.hyper_param("learning_rate", 2e-4)).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args =
        TrainArgs::parse_program("Colors outlines, learned without pairs (CycleGAN)", &gan::NEED_ONE_COST)?;
    let train = pairs::Unpaired(pairs::Pairs::train());
    let (sizes, batch, length) = match args.full {
        // The original has 195 passes over single pictures, with a rate that falls to 0 in the last 95.
        true => (Sizes { channels: 64, blocks: 9 }, 1, (195, train.clone().size().unwrap_or(1))),
        false => (Sizes { channels: 16, blocks: 3 }, 4, (40, 300)),
    };
    let input = match args.fake {
        true => DummyConstantInput::new([vec![batch, 32, 32, 1], vec![batch, 32, 32, 3]]).boxed(),
        false => QueueInput::new(train.shuffle().batch(batch)).boxed(),
    };
    let gan = GanTrainer::new(CycleGan { sizes }, input, &args)?;
    pairs::add_outputs(gan.graph(), colorize(sizes))?;
    let trained = gan::train(&args, gan, length, |gan, config| {
        let rate = ScheduledHyperParamSetter::new("learning_rate", [(100, 2e-4), (195, 0.0)]);
        gan.train_together(config.callback(rate.linear()))
    })?;
    pairs::judge(&args, &trained, TARGET)
}
