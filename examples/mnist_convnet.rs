//! A convnet on MNIST: four convolutions, two max poolings, and a hidden layer with dropout.
//!
//! `cargo run --release --example mnist_convnet` downloads MNIST, or generates digits if that fails.
//! It trains for 12 epochs and reaches a test error of at most 0.9 % (2 % on generated digits); with
//! `--assert` it fails otherwise. It can be interrupted at any time and resumes when started again.
//! At the end it exports its convolutions to `features.safetensors` in its directory, for `finetune`.

use tensorpack::dataflow::dataset::{digits, mnist};
use tensorpack::dataflow::{DataFlow, Flow};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(f32, [None, 28, 28])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

pub(crate) struct Convnet;

impl Model for Convnet {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let x = convolutions(t, &image).named("features");
        let x = Linear::new(512).relu().apply(t, "fc0", &x);
        let x = Dropout::new(0.5).apply(t, "dropout", &x);
        let logits = Linear::new(10).apply(t, "fc1", &x).named("logits");

        let loss = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let correct = logits.argmax(-1).equal(&label.cast(DType::I64)).cast(DType::F32);
        let accuracy = correct.mean().named("accuracy");
        let decay = regularize_cost(t, "fc.*/W", l2_regularizer(1e-5));
        let cost = (&loss + decay).named("total_cost");
        t.moving_summary(&[&loss, &accuracy, &cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::staircase(1e-3, 0.3, 4680)).boxed()
    }
}

/// The feature extractor: from images to the input of the dense layers.
pub(crate) fn convolutions(t: &TowerContext, image: &Tensor) -> Tensor {
    let conv = Conv2d::new(32, 3).relu();
    let x = image.expand_dims(3) * 2.0 - 1.0;
    let x = conv.apply(t, "conv0", &x).max_pool(2);
    let x = conv.apply(t, "conv1", &x);
    let x = conv.apply(t, "conv2", &x).max_pool(2);
    conv.apply(t, "conv3", &x)
}

/// Returns training images, test images, and the largest test error that `--assert` accepts.
pub(crate) fn data() -> Result<(Flow, Flow, f64)> {
    match (mnist::train(), mnist::test()) {
        (Ok(train), Ok(test)) => Ok((train.into_flow(), test.into_flow(), 0.009)),
        (Err(e), _) | (_, Err(e)) => {
            tensorpack::logger::init();
            log::warn!("MNIST is unavailable; training on generated digits: {e}");
            Ok((digits::train()?.into_flow(), digits::test()?.into_flow(), 0.02))
        }
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a convnet on MNIST", &["--fake", "--find-lr"])?;
    let (train, test, target) = data()?;
    let validation = ScalarStats::from_names(["cross_entropy_loss", "accuracy"]).prefix("val");
    let config = TrainConfig::new(Convnet, train.shuffle().batch(128))
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(test.batch(256).keep_remainder(), [validation]))
        .callback(MaxSaver::new("val_accuracy"))
        .summary()
        .max_epoch(if args.full { 100 } else { 12 });
    let trained = args.configure(config)?.train()?;

    let accuracy = trained.monitors.latest("val_accuracy");
    let error = 1.0 - accuracy.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("test error {:.2} %", 100.0 * error);
    if args.assert && error > target {
        return Err(Error::argument(format!("the test error is above {:.2} %", 100.0 * target)));
    }
    // Export the convolutions for other models: see `finetune`.
    let logdir = args.logdir.unwrap_or_else(|| "train_log/mnist_convnet".into());
    trained.get_predictor(&["image"], &["features"])?.export(logdir.join("features.safetensors"))
}
