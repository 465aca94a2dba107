//! Fine-tunes features learned on handwritten digits to read generated digits, with five examples of
//! each.
//!
//! `cargo run --release --example mnist_convnet` exports its convolutions to one file, a module.
//! `cargo run --release --example finetune` adds a new last layer to that module, freezes the first two
//! convolutions, and trains the rest on 50 generated digits. Then it trains the same model from scratch
//! on the same images. After about a minute, the model with the module reads at least 88 % of the test
//! images, and 10 percentage points more than the other; with `--assert` it fails otherwise.
//! `--load FILE` uses another module.

#[allow(dead_code, reason = "only its convolutions are used")]
mod mnist_convnet;

use std::path::{Path, PathBuf};
use tensorpack::dataflow::{DataFlow, dataset::digits};
use tensorpack::predict::Module;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The module that `mnist_convnet` exports.
const MODULE: &str = "train_log/mnist_convnet/features.safetensors";
/// The number of training images.
const IMAGES: u64 = 50;

struct Model {
    /// Created outside the tower function, applied inside. `None`: untrained convolutions.
    module: Option<Module>,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("input", [None, Some(28), Some(28)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (image, label) = (&inputs[0], &inputs[1]);
        let features = match &self.module {
            Some(module) => module.apply(t, "features", image),
            None => t.scope("features", |t| mnist_convnet::convolutions(t, image)),
        };
        let x = Dropout::new(0.5).apply(t, "dropout", &features);
        let logits = Linear::new(10).apply(t, "linear", &x).named("logits");

        let cost = logits.sparse_softmax_cross_entropy(label).mean().named("cross_entropy_loss");
        let correct = logits.argmax(-1).equal(&label.cast(DType::I64)).cast(DType::F32);
        let accuracy = correct.mean().named("accuracy");
        t.moving_summary(&[&cost, &accuracy]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

/// Loads the module, with its first two convolutions frozen.
fn module(path: &Path) -> Result<Module> {
    if !path.exists() {
        return Err(Error::argument(format!("the module {} does not exist", path.display())).note(
            "create it with `cargo run --release --example mnist_convnet`, or give another with --load FILE",
        ));
    }
    Ok(Module::load(path)?.freeze("conv[01]/.*"))
}

/// Trains with this module, or from scratch, and returns the test accuracy.
fn accuracy_with(module: Option<Module>, args: &TrainArgs, name: &str) -> Result<f64> {
    let config = TrainConfig::new(Model { module }, digits::train()?.take(IMAGES).shuffle().batch(25))
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(digits::test()?.batch(250), [ScalarStats::new("accuracy")]))
        .steps_per_epoch(100)
        .max_epoch(3);
    let runs = args.logdir.clone().unwrap_or_else(|| PathBuf::from("train_log/finetune"));
    let args = TrainArgs { logdir: Some(runs.join(name)), ..args.clone() };
    let trained = args.configure(config)?.train()?;
    trained.monitors.latest("validation_accuracy").ok_or_else(|| Error::argument("no epoch was trained"))
}

fn main() -> Result<()> {
    let mut args = TrainArgs::parse_program(
        "Fine-tunes features of handwritten digits on five examples of each generated digit",
        &["--fake", "--full", "--find-lr"],
    )?;
    let path = args.load.take().unwrap_or_else(|| MODULE.into());
    let finetuned = accuracy_with(Some(module(&path)?), &args, "module")?;
    let scratch = accuracy_with(None, &args, "scratch")?;
    say!("test accuracy with the module: {:.1} %, from scratch: {:.1} %", 100.0 * finetuned, 100.0 * scratch);
    if args.assert && (finetuned < 0.88 || finetuned < scratch + 0.1) {
        return Err(Error::argument(
            "the accuracy with the module is below 88 %, or less than 10 points above training from scratch",
        ));
    }
    Ok(())
}
