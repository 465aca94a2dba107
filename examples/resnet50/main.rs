//! ResNet-50 v1.5 on ImageNet (He et al., 2015), with a total batch of 256 and the schedule of Goyal et
//! al., 2017.
//!
//! `cargo run --release --example resnet50 -- --fake` trains on constant images, 20 steps of 8 images on
//! every tower, and prints the images per second. The cost falls below 1; with `--assert` it fails
//! otherwise.
//!
//! `--data DIR` trains on unpacked ImageNet, `DIR/train/n01440764/*.JPEG` and `DIR/val`, for 105 epochs.
//! This needs accelerators; the original reports 23.6 % top-1 error, which `--assert` checks to half a
//! percent.
//!
//! `--recompute` trains in less memory and more time; see `docs/memory.md`.

#[path = "../imagenet/data.rs"]
mod data;
mod net;

use clap::Parser;
use data::{SIDE, normalized, training_data, validation_data};
use tensorpack::callback::ThroughputTracker;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::DummyConstantInput;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The batch size over all towers.
const TOTAL_BATCH: usize = 256;
/// The batch size of fake data on every tower.
const FAKE_BATCH: usize = 8;

struct Model {
    rate: Schedule,
    recompute: bool,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        let image = [None, Some(SIDE), Some(SIDE), Some(3)];
        vec![TensorSpec::new("input", DType::U8, image), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (image, label) = (&inputs[0], &inputs[1]);
        let logits = net::resnet50(t, &normalized(image), self.recompute).named("logits");

        let loss = logits.sparse_softmax_cross_entropy(label).mean().named("cross_entropy_loss");
        let wrong =
            |k: usize, name: &str| (1.0 - logits.in_top_k(label, k).cast(DType::F32)).mean().named(name);
        let (top1, top5) = (wrong(1, "error-top1"), wrong(5, "error-top5"));
        let decay = regularize_cost(t, ".*/W", l2_regularizer(1e-4));
        let cost = (&loss + decay).named("total_cost");
        t.moving_summary(&[&loss, &top1, &top5, &cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(self.rate.clone(), 0.9).nesterov().boxed()
    }
}

fn train_on_images(args: &TrainArgs, root: &str, recompute: bool) -> Result<()> {
    let towers = args.all_towers()?;
    if !TOTAL_BATCH.is_multiple_of(towers) {
        return Err(Error::argument(format!("{towers} towers do not divide a batch of {TOTAL_BATCH}")));
    }
    let data = training_data(root, TOTAL_BATCH / towers)?;
    // A step reads one batch per tower.
    let steps = data.size().map_or(0, |batches| batches / towers as u64).max(1);
    let later = [(30, 1e-2), (60, 1e-3), (90, 1e-4), (100, 1e-5)];
    let rate = Schedule::piecewise(0.1, later.map(|(epoch, rate)| (epoch * steps, rate)));
    let validation = ScalarStats::from_names(["error-top1", "error-top5"]).prefix("val");
    let config = TrainConfig::new(Model { rate, recompute }, data)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(validation_data(root)?, [validation]))
        .callback(MinSaver::new("val_error-top1"))
        .callback(ThroughputTracker::samples(TOTAL_BATCH as u64))
        .steps_per_epoch(steps)
        .max_epoch(105);
    let trained = args.configure(config)?.train()?;
    let error = trained.monitors.latest("val_error-top1");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("top-1 error {:.2} %", 100.0 * error);
    if args.assert && error > 0.241 {
        return Err(Error::argument("the top-1 error is above 24.1 %"));
    }
    Ok(())
}

fn train_on_dummy_data(args: &TrainArgs, recompute: bool) -> Result<()> {
    let images = FAKE_BATCH * args.all_towers()?;
    let sizes = vec![vec![FAKE_BATCH, SIDE, SIDE, 3], vec![FAKE_BATCH]];
    let model = Model { rate: Schedule::constant(0.1), recompute };
    let config = TrainConfig::with_input(model, DummyConstantInput::new(sizes))
        .callback(ThroughputTracker::samples(images as u64))
        .steps_per_epoch(10)
        .max_epoch(2);
    let trained = args.configure(config)?.train()?;
    let latest =
        |name: &str| trained.monitors.latest(name).ok_or_else(|| Error::argument("no epoch was trained"));
    // Of several processes only the first one measures.
    if let Some(rate) = trained.monitors.latest("Throughput (samples/sec)") {
        say!("{rate:.1} images/s");
    }
    let cost = latest("cross_entropy_loss")?;
    if args.assert && cost > 1.0 {
        return Err(Error::argument(format!("the cost is {cost:.3}, not below 1")));
    }
    Ok(())
}

/// Trains ResNet-50 on ImageNet, or on constant images to measure speed.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The ImageNet directory.
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Keep only what each block takes in, and compute the rest again in the backward pass: less memory,
    /// more time.
    #[arg(long)]
    recompute: bool,
}

fn main() -> Result<()> {
    let Args { train: args, data, recompute } =
        tensorpack::command_line::parse_without(&["--full", "--find-lr"])?;
    match (data, args.fake) {
        (Some(root), false) => train_on_images(&args, &root, recompute),
        (None, true) => train_on_dummy_data(&args, recompute),
        _ => Err(Error::argument("give either --fake, or --data DIR with the ImageNet directory")),
    }
}
