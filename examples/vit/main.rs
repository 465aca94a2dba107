//! A vision transformer on CIFAR-10 (Dosovitskiy et al., 2020): patches of 4x4 pixels are the tokens.
//!
//! `cargo run --release --example vit` downloads CIFAR-10 and trains 4 blocks of 96 features for 5 epochs.
//! It reaches a test error of 43.9 %; with `--assert` it fails above 47 %. `--full` trains 9 blocks of 192
//! features for 200 epochs with RandAugment. `--fake` trains on random images.

mod net;

use net::Vit;
use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{AugmentExt, AugmentorList, Flip, Paste, RandAugment, RandomCrop};
use tensorpack::dataflow::{ComponentSpec, DataFlow, FakeData, Flow};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The side of an image.
const SIDE: usize = 32;
const BATCH: usize = 128;
const STEPS: u64 = 390;
/// The largest test error of a default run that `--assert` accepts.
const TARGET: f64 = 0.47;

#[derive(Inputs)]
struct Batch {
    #[input(u8, [None, 32, 32, 3])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

struct Classifier {
    vit: Vit,
    rate: Schedule,
}

impl Model for Classifier {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let image = image.cast(DType::F32) / 64.0 - 2.0;
        let logits = self.vit.logits(t, &image).named("logits");
        let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let wrong = logits.argmax(-1).not_equal(&label.cast(DType::I64)).cast(DType::F32);
        let error = wrong.mean().named("error");
        t.moving_summary(&[&cost, &error]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        // Weight decay for matrices only.
        let adamw = AdamW::new(self.rate.clone()).decay(0.0).process(GlobalNormClip::new(1.0));
        ParamGroups::new(adamw).group(".*/W", |g| g.decay(0.05)).boxed()
    }
}

/// Returns training images and test images; random ones with `--fake`.
fn data(fake: bool) -> Result<[Flow; 2]> {
    if fake {
        let sample = [ComponentSpec::new(DType::U8, [SIDE, SIDE, 3]), ComponentSpec::new(DType::I32, [])];
        let fake = |size| FakeData::new(size, sample.clone()).range(0.0, 10.0).into_flow();
        return Ok([fake(50_000), fake(256)]);
    }
    Ok([cifar10::train()?.into_flow(), cifar10::test()?.into_flow()])
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a vision transformer on CIFAR-10", &["--find-lr"])?;
    if args.full || args.fake {
        // The long schedule and random images have no stated result.
        args.without(&["--assert"])?;
    }
    let [train, test] = data(args.fake)?;
    let mut augmentors = AugmentorList::new()
        .then(Paste::center(40, 40))
        .then(RandomCrop::new(SIDE, SIDE))
        .then(Flip::horizontal());
    if args.full {
        augmentors = augmentors.then(RandAugment::new(2, 9));
    }
    let (features, heads, blocks, dropout) = if args.full { (192, 3, 9, 0.1) } else { (96, 3, 4, 0.0) };
    let vit = Vit { side: SIDE, patch: 4, features, heads, blocks, classes: 10, dropout };
    let epochs = if args.full { 200 } else { 5 };
    let rate = Schedule::cosine(1e-3, 0.0, STEPS * epochs).warm_up(200);
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let data = train.shuffle().augment_image(0, augmentors).batch(BATCH).prefetch(4);
    let config = TrainConfig::new(Classifier { vit, rate }, data)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test.batch(BATCH).keep_remainder(), [validation]))
        .callback(MinSaver::new("validation_error"))
        .steps_per_epoch(STEPS)
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    if args.assert && error > TARGET {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * TARGET)));
    }
    Ok(())
}
