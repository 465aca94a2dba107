//! A pre-activation ResNet on CIFAR-10 (He et al., 2016): three stages of `n` blocks.
//!
//! `cargo run --release --example cifar_resnet` downloads CIFAR-10 and trains 14 layers (`n` = 2) for
//! 5 epochs, about 6 minutes on two cores. It reaches a test error of at most 21 %; with `--assert` it
//! fails otherwise. `--full` is the long schedule: 32 layers (`n` = 5), 64,000 steps with batches of
//! 64. `--fake` trains on random images. `--trainer sync-replicated --devices cpu:0,cpu:1` trains on
//! two towers.

use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{AugmentExt, AugmentorList, Flip, Paste, RandomCrop};
use tensorpack::dataflow::{ComponentSpec, DataFlow, FakeData, Flow};
use tensorpack::graph::Fan;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(u8, [None, 32, 32, 3])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

pub(crate) struct ResNet {
    /// Blocks in each stage; the model has `6 n + 2` layers.
    pub(crate) n: usize,
    /// The mean training image.
    pub(crate) mean: HostTensor,
    pub(crate) rate: Schedule,
}

impl Model for ResNet {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let x = (image.cast(DType::F32) - t.graph().constant(self.mean.clone())) / 128.0;
        let x = conv(16, 1).apply(t, "conv0", &x);
        let mut x = norm().apply(t, "bn0", &x);
        for stage in 0..3 {
            for i in 0..self.n {
                x = t.scope(&format!("res{}.{i}", stage + 1), |t| block(t, &x, stage, i));
            }
        }
        let x = norm().apply(t, "bnlast", &x).global_average_pool();
        let logits = Linear::new(10).apply(t, "linear", &x).named("logits");

        let loss = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let wrong = logits.argmax(-1).not_equal(&label.cast(DType::I64)).cast(DType::F32);
        let error = wrong.mean().named("error");
        let decay = regularize_cost(t, ".*/W", l2_regularizer(2e-4));
        let cost = (&loss + decay).named("total_cost");
        t.moving_summary(&[&loss, &error, &cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(self.rate.clone(), 0.9).boxed()
    }
}

fn conv(channels: usize, stride: usize) -> Conv2d {
    let he = Init::VarianceScaling { scale: 2.0, fan: Fan::Out };
    Conv2d::new(channels, 3).stride(stride).no_bias().init(he)
}

fn norm() -> BatchNorm {
    BatchNorm::new().relu()
}

/// Two convolutions with a shortcut. The first block of a later stage halves the image size and
/// doubles the channels.
fn block(t: &TowerContext, x: &Tensor, stage: usize, i: usize) -> Tensor {
    let channels = 16 << stage;
    let is_smaller = stage > 0 && i == 0;
    let y = if stage + i == 0 { x.clone() } else { norm().apply(t, "bn0", x) };
    let y = conv(channels, if is_smaller { 2 } else { 1 }).apply(t, "conv1", &y);
    let y = norm().apply(t, "bn1", &y);
    let y = conv(channels, 1).apply(t, "conv2", &y);
    if !is_smaller {
        return y + x;
    }
    let missing = [0, 0, 0, channels / 4];
    y + x.average_pool(2).pad(&missing, &missing, &[0; 4])
}

/// Returns training images, test images, and the mean training image.
fn data(fake: bool) -> Result<(Flow, Flow, HostTensor)> {
    if fake {
        let sample = [ComponentSpec::new(DType::U8, [32, 32, 3]), ComponentSpec::new(DType::I32, [])];
        let fake = |size| FakeData::new(size, sample.clone()).range(0.0, 10.0).into_flow();
        return Ok((fake(50_000), fake(256), HostTensor::zeros(DType::F32, [32, 32, 3])?));
    }
    let train = cifar10::train()?;
    let mean = train.per_pixel_mean()?;
    Ok((train.into_flow(), cifar10::test()?.into_flow(), mean))
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a pre-activation ResNet on CIFAR-10", &[])?;
    let (train, test, mean) = data(args.fake)?;
    let augmentors = AugmentorList::new()
        .then(Paste::center(40, 40))
        .then(RandomCrop::new(32, 32))
        .then(Flip::horizontal());
    let (n, batch, steps, epochs) = if args.full { (5, 64, 1000, 64) } else { (2, 128, 390, 5) };
    let rate = match args.full {
        true => Schedule::piecewise(0.01, [(1_000, 0.1), (32_000, 0.01), (48_000, 0.001)]),
        false => Schedule::cosine(0.2, 0.0, steps * epochs).warm_up(200),
    };
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let config = TrainConfig::new(
        ResNet { n, mean, rate },
        train.shuffle().augment_image(0, augmentors).batch(batch).prefetch(4),
    )
    .callback(ModelSaver::new())
    .callback(InferenceRunner::new(test.batch(128).keep_remainder(), [validation]))
    .callback(MinSaver::new("validation_error"))
    .steps_per_epoch(steps)
    .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    let target = if args.full { 0.09 } else { 0.21 };
    if args.assert && error > target {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * target)));
    }
    Ok(())
}
