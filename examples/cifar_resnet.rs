//! ResNets on CIFAR-10: pre-activation ResNets of three stages of `n` blocks (He et al., 2016), and the
//! wider pre-activation ResNet-18 of Zhang et al. (2017).
//!
//! `cargo run --release --example cifar_resnet` downloads CIFAR-10 and trains 14 layers (`n` = 2) for
//! 5 epochs, about 6 minutes on two cores. It reaches a test error of at most 21 %; with `--assert` it
//! fails otherwise. `--net NAME` chooses another net. `--full` is the long schedule of the net, or of 32
//! layers (`n` = 5): 64,000 steps with batches of 64. `docs/reproductions.md` compares the results of
//! long schedules with published ones. `--mixup ALPHA` trains on mixed pairs of images (Zhang et al.,
//! 2017). `--fake` trains on random images. `--trainer sync-replicated --devices cpu:0,cpu:1` trains on
//! two towers.

#[allow(dead_code, unused_imports, reason = "one of the nets is used")]
#[path = "imagenet/nets/mod.rs"]
mod nets;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{AugmentExt, AugmentorList, Flip, Mixup, Paste, RandomCrop};
use tensorpack::dataflow::{ComponentSpec, DataFlow, FakeData, Flow, Sample, SampleRng};
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

/// Images to be mixed, each with another one of the batch.
#[derive(Inputs)]
pub(crate) struct Pairs {
    #[input(u8, [None, 32, 32, 3])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
    /// The index of the other image.
    #[input(i32, [None])]
    partner: Tensor,
    /// The weight of the image; that of the other one is the rest to 1.
    #[input(f32, [None])]
    weight: Tensor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Net {
    /// Three stages of `n` blocks with 16, 32 and 64 channels: `6 n + 2` layers.
    Resnet { n: usize },
    /// Four stages of two blocks with 64 to 512 channels, times `width`.
    PreactResnet18 { width: f64 },
}

pub(crate) const NETS: [(&str, Net); 6] = [
    ("resnet14", Net::Resnet { n: 2 }),
    ("resnet20", Net::Resnet { n: 3 }),
    ("resnet32", Net::Resnet { n: 5 }),
    ("resnet56", Net::Resnet { n: 9 }),
    ("resnet110", Net::Resnet { n: 18 }),
    ("preact_resnet18", Net::PreactResnet18 { width: 1.0 }),
];

impl Net {
    /// Maps normalized images to logits.
    pub(crate) fn logits(self, t: &TowerContext, x: &Tensor) -> Tensor {
        match self {
            Net::Resnet { n } => resnet(t, x, n),
            Net::PreactResnet18 { width } => {
                let variant = nets::Variant { classes: 10, width, small_images: true };
                nets::preact_resnet18(t, x, &variant)
            }
        }
    }
}

pub(crate) struct Classifier {
    pub(crate) net: Net,
    /// The mean training image.
    pub(crate) mean: HostTensor,
    pub(crate) rate: Schedule,
    pub(crate) weight_decay: f64,
}

impl Model for Classifier {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let logits = self.logits(t, &image.cast(DType::F32));
        let loss = logits.sparse_softmax_cross_entropy(&label);
        self.cost(t, &logits, &loss, &label.cast(DType::I64))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(self.rate.clone(), 0.9).boxed()
    }
}

/// The same model, trained on mixed images.
pub(crate) struct MixedClassifier(pub(crate) Classifier);

impl Model for MixedClassifier {
    type Inputs = Pairs;

    fn build_graph(&self, t: &TowerContext, Pairs { image, label, partner, weight }: Pairs) -> Tensor {
        let other = |x: &Tensor| x.gather(&partner, 0);
        let rest = 1.0 - &weight;
        let per_image = |x: &Tensor| x.reshape(&[-1, 1, 1, 1]);
        let mixed =
            image.cast(DType::F32) * per_image(&weight) + other(&image).cast(DType::F32) * per_image(&rest);
        let logits = self.0.logits(t, &mixed);
        let other = other(&label);
        let loss = logits.sparse_softmax_cross_entropy(&label) * &weight
            + logits.sparse_softmax_cross_entropy(&other) * &rest;
        // The class of the larger part counts.
        let class = weight.greater_equal(&rest).select(&label, &other);
        self.0.cost(t, &logits, &loss, &class.cast(DType::I64))
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Model::optimizer(&self.0, t)
    }
}

impl Classifier {
    pub(crate) fn logits(&self, t: &TowerContext, image: &Tensor) -> Tensor {
        let x = (image - t.graph().constant(self.mean.clone())) / 128.0;
        self.net.logits(t, &x).named("logits")
    }

    /// Returns the cost: the mean loss of the examples, and weight decay.
    pub(crate) fn cost(&self, t: &TowerContext, logits: &Tensor, loss: &Tensor, class: &Tensor) -> Tensor {
        let loss = loss.mean().named("cross_entropy_loss");
        let error = logits.argmax(-1).not_equal(class).cast(DType::F32).mean().named("error");
        let decay = regularize_cost(t, ".*/W", l2_regularizer(self.weight_decay));
        let cost = (&loss + decay).named("total_cost");
        t.moving_summary(&[&loss, &error, &cost]);
        cost
    }
}

/// A pre-activation ResNet of `6 n + 2` layers.
fn resnet(t: &TowerContext, x: &Tensor, n: usize) -> Tensor {
    let x = conv(16, 1).apply(t, "conv0", x);
    let mut x = norm().apply(t, "bn0", &x);
    for stage in 0..3 {
        for i in 0..n {
            x = t.scope(&format!("res{}.{i}", stage + 1), |t| block(t, &x, stage, i));
        }
    }
    let x = norm().apply(t, "bnlast", &x).global_average_pool();
    Linear::new(10).apply(t, "linear", &x)
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

/// Returns a batch with partners and the weight of its images.
pub(crate) fn pairs(mixup: &Mixup, mut batch: Sample, rng: &mut SampleRng) -> Result<Sample> {
    let (weight, partners) = mixup.draw(batch[1].len(), rng)?;
    let partners: Vec<i32> = partners.into_iter().map(|i| i as i32).collect();
    batch.push(HostTensor::new([partners.len()], partners)?);
    batch.push(HostTensor::new(batch[1].sizes(), vec![weight as f32; batch[1].len()])?);
    Ok(batch)
}

/// Returns a batch as `pairs` does, where every image is its own partner.
pub(crate) fn unmixed(mut batch: Sample) -> Result<Sample> {
    let n = batch[1].len();
    batch.push(HostTensor::new([n], (0..n as i32).collect::<Vec<_>>())?);
    batch.push(HostTensor::new([n], vec![1.0f32; n])?);
    Ok(batch)
}

/// How to train, and the test error that is reached.
struct Recipe {
    batch: usize,
    steps: u64,
    epochs: u64,
    rate: Schedule,
    weight_decay: f64,
    /// The stated test error.
    target: Option<f64>,
}

impl Recipe {
    /// Five epochs, for any net.
    fn short(net: Net, mixup: Option<f64>) -> Recipe {
        let (steps, epochs) = (390, 5);
        let rate = Schedule::cosine(0.2, 0.0, steps * epochs).warm_up(200);
        let is_default = net == NETS[0].1 && mixup.is_none();
        Recipe { batch: 128, steps, epochs, rate, weight_decay: 2e-4, target: is_default.then_some(0.21) }
    }

    /// The long schedule of a net.
    fn full(net: Net, mixup: Option<f64>) -> Recipe {
        // He et al. (2016) begin with a low rate for 400 steps, here for 1,000 if the batch is small.
        let rate = |warm_up| Schedule::piecewise(0.01, [(warm_up, 0.1), (32_000, 0.01), (48_000, 0.001)]);
        let (batch, steps, epochs, rate, weight_decay) = match net {
            Net::Resnet { n: 5 } => (64, 1000, 64, rate(1000), 2e-4),
            Net::Resnet { .. } => (128, 1000, 64, rate(400), 2e-4),
            Net::PreactResnet18 { .. } => {
                (128, 390, 200, Schedule::piecewise(0.1, [(100 * 390, 0.01), (150 * 390, 0.001)]), 1e-4)
            }
        };
        let target = match (net, mixup) {
            (Net::Resnet { n: 3 }, None) => Some(0.086),
            (Net::Resnet { n: 5 }, None) => Some(0.09),
            (Net::Resnet { n: 9 }, None) => Some(0.069),
            (Net::Resnet { n: 18 }, None) => Some(0.064),
            (Net::PreactResnet18 { .. }, Some(1.0)) => Some(0.045),
            _ => None,
        };
        Recipe { batch, steps, epochs, rate, weight_decay, target }
    }
}

/// Trains a ResNet on CIFAR-10.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The net; defaults to resnet14, with --full to resnet32.
    #[arg(long, value_name = "NAME", value_parser = net_names())]
    net: Option<Net>,
    /// Train on mixed pairs of images, with weights from Beta(ALPHA, ALPHA); the paper has 1.
    #[arg(long, value_name = "ALPHA", value_parser = alpha)]
    mixup: Option<f64>,
}

/// Parses the value of `--mixup`.
pub(crate) fn alpha(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(alpha) if alpha > 0.0 && alpha.is_finite() => Ok(alpha),
        _ => Err("expected a positive number".to_string()),
    }
}

fn net_names() -> impl TypedValueParser<Value = Net> {
    let find = |name: String| NETS.into_iter().find(|(net, _)| *net == name).expect("a listed name").1;
    PossibleValuesParser::new(NETS.map(|(name, _)| name)).map(find)
}

fn main() -> Result<()> {
    let Args { train: args, net, mixup } = tensorpack::command_line::parse_without(&["--find-lr"])?;
    let net = net.unwrap_or(Net::Resnet { n: if args.full { 5 } else { 2 } });
    let recipe = if args.full { Recipe::full(net, mixup) } else { Recipe::short(net, mixup) };
    if args.assert && (recipe.target.is_none() || args.fake) {
        return Err(Error::argument("these options have no stated result that --assert could check"));
    }
    let (train, test, mean) = data(args.fake)?;
    let augmentors = AugmentorList::new()
        .then(Paste::center(40, 40))
        .then(RandomCrop::new(32, 32))
        .then(Flip::horizontal());
    let model = Classifier { net, mean, rate: recipe.rate, weight_decay: recipe.weight_decay };
    let train = train.shuffle().augment_image(0, augmentors).batch(recipe.batch);
    let test = test.batch(128).keep_remainder();
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let config = match mixup {
        None => TrainConfig::new(model, train.prefetch(4))
            .callback(ModelSaver::new())
            .callback(InferenceRunner::new(test, [validation])),
        Some(alpha) => {
            let mixup = Mixup::new(alpha, 10);
            let mixed = train.map_random(move |batch, rng| pairs(&mixup, batch, rng));
            TrainConfig::new(MixedClassifier(model), mixed.prefetch(4))
                .callback(ModelSaver::new())
                .callback(InferenceRunner::new(test.map(unmixed), [validation]))
        }
    };
    let config = config
        .callback(MinSaver::new("validation_error"))
        .steps_per_epoch(recipe.steps)
        .max_epoch(recipe.epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    if let Some(target) = recipe.target
        && args.assert
        && error > target
    {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * target)));
    }
    Ok(())
}
