//! Image classification with the nets of many papers: ResNet with and without pre-activation, ResNeXt,
//! SE-ResNet, VGG, MobileNetV2, EfficientNet and ShuffleNet V2. `--net NAME` chooses one.
//!
//! `cargo run --release --example imagenet` downloads CIFAR-10 and trains a ResNet-18 of a quarter of the
//! width for 5 epochs. It reaches a test error of 21.6 %; with `--assert` it fails above 23 %. Other nets
//! and widths (`--width 0.5`) train in the same way; `--full` is a schedule of 200 epochs at full width.
//!
//! `--data DIR` trains on unpacked ImageNet, `DIR/train/n01440764/*.JPEG` and `DIR/val`, with a total
//! batch of 256. This needs accelerators. `--fake` trains on constant images of ImageNet's size, 8 on
//! every tower, and prints the images per second.

mod data;
mod nets;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use data::{SIDE, normalized, training_data, validation_data};
use nets::{NETS, Net, Variant};
use tensorpack::callback::ThroughputTracker;
use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{AugmentExt, AugmentorList, Flip, Paste, RandomCrop};
use tensorpack::dataflow::{DataFlow, Flow};
use tensorpack::input::DummyConstantInput;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The side of an image of CIFAR-10.
const SMALL_SIDE: usize = 32;
/// The batch size on ImageNet, over all towers.
const TOTAL_BATCH: usize = 256;
/// The batch size of CIFAR-10 on every tower.
const SMALL_BATCH: usize = 128;
/// The batch size of fake data on every tower.
const FAKE_BATCH: usize = 8;
/// The net of a default run, and its width.
const DEFAULT: (&str, f64) = ("resnet18", 0.25);
/// The largest test error of a default run that `--assert` accepts.
const TARGET: f64 = 0.23;

struct Model {
    net: Net,
    variant: Variant,
    side: usize,
    rate: Schedule,
    weight_decay: f64,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        let image = [None, Some(self.side), Some(self.side), Some(3)];
        vec![TensorSpec::new("input", DType::U8, image), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (image, label) = (&inputs[0], &inputs[1]);
        let logits = (self.net)(t, &normalized(image), &self.variant).named("logits");

        let loss = logits.sparse_softmax_cross_entropy(label).mean().named("cross_entropy_loss");
        let wrong =
            |k: usize, name: &str| (1.0 - logits.in_top_k(label, k).cast(DType::F32)).mean().named(name);
        let (top1, top5) = (wrong(1, "error-top1"), wrong(5, "error-top5"));
        let decay = regularize_cost(t, ".*/W", l2_regularizer(self.weight_decay));
        let cost = (&loss + decay).named("total_cost");
        t.moving_summary(&[&loss, &top1, &top5, &cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(self.rate.clone(), 0.9).nesterov().boxed()
    }
}

/// Epochs, learning rate and weight decay of a net on ImageNet.
fn schedule(net: &str, steps: u64) -> (u64, Schedule, f64) {
    let divided = |first: f64, epochs: &[u64]| {
        let later = epochs.iter().zip(1..).map(|(epoch, i)| (epoch * steps, first * 0.1f64.powi(i)));
        Schedule::piecewise(first, later.collect::<Vec<_>>())
    };
    match net {
        // Without normalization, larger rates diverge.
        "vgg16" => (90, divided(0.01, &[30, 60]), 5e-4),
        // Small nets overfit less.
        "mobilenet_v2" | "efficientnet_b0" | "shufflenet_v2_x1_0" => {
            (150, Schedule::cosine(0.05, 0.0, 150 * steps), 4e-5)
        }
        _ => (105, divided(0.1, &[30, 60, 90, 100]), 1e-4),
    }
}

/// Returns training images of CIFAR-10 with random crops, and test images.
fn small_images() -> Result<[Flow; 2]> {
    let augmentors = AugmentorList::new()
        .then(Paste::center(40, 40))
        .then(RandomCrop::new(SMALL_SIDE, SMALL_SIDE))
        .then(Flip::horizontal());
    let train = cifar10::train()?.shuffle().augment_image(0, augmentors).batch(SMALL_BATCH).prefetch(4);
    Ok([train.into_flow(), cifar10::test()?.batch(SMALL_BATCH).keep_remainder().into_flow()])
}

/// Returns a statistic of the last epoch.
fn latest(trained: &Trained, name: &str) -> Result<f64> {
    trained.monitors.latest(name).ok_or_else(|| Error::argument("no epoch was trained"))
}

fn train_on_imagenet(args: &Args, net: Net, root: &str) -> Result<()> {
    args.train.without(&["--full", "--assert"])?;
    let towers = args.train.all_towers()?;
    if !TOTAL_BATCH.is_multiple_of(towers) {
        return Err(Error::argument(format!("{towers} towers do not divide a batch of {TOTAL_BATCH}")));
    }
    let data = training_data(root, TOTAL_BATCH / towers)?;
    // A step reads one batch per tower.
    let steps = data.size().map_or(0, |batches| batches / towers as u64).max(1);
    let (epochs, rate, weight_decay) = schedule(&args.net, steps);
    let variant = Variant { width: args.width.unwrap_or(1.0), ..Variant::IMAGENET };
    let validation = ScalarStats::from_names(["error-top1", "error-top5"]).prefix("val");
    let config = TrainConfig::new(Model { net, variant, side: SIDE, rate, weight_decay }, data)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(validation_data(root)?, [validation]))
        .callback(MinSaver::new("val_error-top1"))
        .callback(ThroughputTracker::samples(TOTAL_BATCH as u64))
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    let trained = args.train.configure(config)?.train()?;
    say!("top-1 error {:.2} %", 100.0 * latest(&trained, "val_error-top1")?);
    Ok(())
}

fn train_on_cifar(args: &Args, net: Net) -> Result<()> {
    let full = args.train.full;
    let width = args.width.unwrap_or(if full { 1.0 } else { DEFAULT.1 });
    let is_default = !full && (args.net.as_str(), width) == DEFAULT;
    if args.train.assert && !is_default {
        return Err(Error::argument("only a default run has a result that --assert could check"));
    }
    let [train, test] = small_images()?;
    let (steps, epochs) = if full { (390, 200) } else { (390, 5) };
    let peak = match args.net.as_str() {
        // Without normalization, larger rates diverge.
        "vgg16" => 0.02,
        _ => 0.2,
    };
    let model = Model {
        net,
        variant: Variant { classes: 10, width, small_images: true },
        side: SMALL_SIDE,
        rate: Schedule::cosine(peak, 0.0, steps * epochs).warm_up(200),
        weight_decay: if full { 5e-4 } else { 2e-4 },
    };
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error-top1"]);
    let config = TrainConfig::new(model, train)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test, [validation]))
        .callback(MinSaver::new("validation_error-top1"))
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    let trained = args.train.configure(config)?.train()?;
    let error = latest(&trained, "validation_error-top1")?;
    say!("test error {:.2} %", 100.0 * error);
    if args.train.assert && error > TARGET {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * TARGET)));
    }
    Ok(())
}

fn train_on_constant_images(args: &Args, net: Net) -> Result<()> {
    args.train.without(&["--full", "--assert"])?;
    let variant = Variant { width: args.width.unwrap_or(1.0), ..Variant::IMAGENET };
    let rate = Schedule::constant(0.01);
    let model = Model { net, variant, side: SIDE, rate, weight_decay: 1e-4 };
    let images = FAKE_BATCH * args.train.all_towers()?;
    let sizes = vec![vec![FAKE_BATCH, SIDE, SIDE, 3], vec![FAKE_BATCH]];
    let config = TrainConfig::with_input(model, DummyConstantInput::new(sizes))
        .callback(ThroughputTracker::samples(images as u64))
        .steps_per_epoch(10)
        .max_epoch(2);
    let trained = args.train.configure(config)?.train()?;
    // Of several processes only the first one measures.
    if let Some(rate) = trained.monitors.latest("Throughput (samples/sec)") {
        say!("{rate:.1} images/s");
    }
    Ok(())
}

/// Trains one of many nets on CIFAR-10 or ImageNet.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The net.
    #[arg(long, value_name = "NAME", default_value = DEFAULT.0, value_parser = net_names())]
    net: String,
    /// The factor of the numbers of channels; defaults to 1, on CIFAR-10 without --full to 0.25.
    #[arg(long, value_name = "FACTOR")]
    width: Option<f64>,
    /// The ImageNet directory; CIFAR-10 without it.
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
}

fn net_names() -> PossibleValuesParser {
    PossibleValuesParser::new(NETS.map(|(name, _)| name))
}

fn main() -> Result<()> {
    let args: Args = tensorpack::command_line::parse_without(&["--find-lr"])?;
    if args.width.is_some_and(|width| !(0.01..=100.0).contains(&width)) {
        return Err(Error::argument("--width must be from 0.01 to 100"));
    }
    let net = nets::find(&args.net)?;
    match (&args.data, args.train.fake) {
        (Some(root), false) => train_on_imagenet(&args, net, root),
        (None, false) => train_on_cifar(&args, net),
        (None, true) => train_on_constant_images(&args, net),
        (Some(_), true) => Err(Error::argument("give either --fake or --data")),
    }
}
