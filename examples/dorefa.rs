//! DoReFa-Net (Zhou et al., 2016) on MNIST: a convnet with 1-bit weights and 2-bit activations.
//!
//! `cargo run --release --example dorefa` downloads MNIST, or generates digits if that fails. It trains
//! for 5 epochs of 94 steps and reaches a test error of 2.3 % on MNIST; with `--assert` it needs MNIST
//! and fails above 3.5 %. `--full` trains for 100 epochs. The first and the last layer are not quantized.

mod digits;

use tensorpack::dataflow::DataFlow;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

const WEIGHT_BITS: u32 = 1;
const ACTIVATION_BITS: u32 = 2;
/// The largest test error on MNIST that `--assert` accepts.
const TARGET: f64 = 0.035;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(f32, [None, 28, 28])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

pub(crate) struct Convnet;

/// Returns `value`, with the gradient of `x`: a straight-through estimator.
fn straight_through(x: &Tensor, value: &Tensor) -> Tensor {
    x + (value - x).stop_gradient()
}

/// Rounds values in 0..1 to this many bits.
fn quantize(x: &Tensor, bits: u32) -> Tensor {
    let steps = f64::from(2u32.pow(bits) - 1);
    straight_through(x, &((x * steps).round() * (1.0 / steps)))
}

/// Quantizes the weights of all layers but the first and the last.
fn quantize_weight(variable: &Variable) -> Tensor {
    let weight = variable.value();
    if !variable.name().ends_with("/W")
        || ["conv0", "fc1"].iter().any(|layer| variable.name().starts_with(layer))
    {
        return weight.clone();
    }
    if WEIGHT_BITS == 1 {
        // The sign, scaled by the mean of the layer's absolute values.
        let scale = weight.abs().mean().stop_gradient();
        return straight_through(weight, &(weight.sign() * scale));
    }
    let bounded = weight.tanh();
    let all: Vec<isize> = (0..weight.rank() as isize).collect();
    let largest = bounded.abs().max_axes(&all).stop_gradient();
    quantize(&(bounded / largest * 0.5 + 0.5), WEIGHT_BITS) * 2.0 - 1.0
}

/// Bounds activations to 0..1 and quantizes them.
fn activate(x: &Tensor) -> Tensor {
    quantize(&x.clip(0.0, 1.0), ACTIVATION_BITS)
}

impl Model for Convnet {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let logits = t.remap_variables(quantize_weight, |t| {
            let conv = Conv2d::new(32, 3).no_bias();
            let norm = BatchNorm::new();
            let x = image.expand_dims(3) * 2.0 - 1.0;
            let x = norm.apply(t, "bn0", &conv.apply(t, "conv0", &x).max_pool(2));
            let x = norm.apply(t, "bn1", &conv.apply(t, "conv1", &activate(&x)));
            let x = norm.apply(t, "bn2", &conv.apply(t, "conv2", &activate(&x)).max_pool(2));
            let x = norm.apply(t, "bn3", &conv.apply(t, "conv3", &activate(&x)));
            let x = norm.apply(t, "bn4", &Linear::new(256).no_bias().apply(t, "fc0", &activate(&x)));
            Linear::new(10).apply(t, "fc1", &activate(&x)).named("logits")
        });
        let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let correct = logits.argmax(-1).equal(&label.cast(DType::I64)).cast(DType::F32);
        let accuracy = correct.mean().named("accuracy");
        t.moving_summary(&[&cost, &accuracy]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::staircase(1e-3, 0.3, 400)).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a quantized convnet on MNIST", &["--fake", "--find-lr"])?;
    let [train, test] = digits::load(args.assert)?;
    let validation = ScalarStats::from_names(["cross_entropy_loss", "accuracy"]).prefix("val");
    let config = TrainConfig::new(Convnet, train.shuffle().batch(128))
        .steps_per_epoch(94)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test.batch(256).keep_remainder(), [validation]))
        .callback(MaxSaver::new("val_accuracy"))
        .max_epoch(if args.full { 100 } else { 5 });
    let trained = args.configure(config)?.train()?;

    let accuracy = trained.monitors.latest("val_accuracy");
    let error = 1.0 - accuracy.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    if args.assert && error > TARGET {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * TARGET)));
    }
    Ok(())
}
