//! What a net learnt of handwritten digits, used to read drawn ones after five examples of each.
//!
//! `cargo run --release --example mnist_convnet` leaves its convolutions in one file: a module. `cargo run --release
//! --example finetune` makes a model of that module and a new last layer, and trains it on 50 of the digits that this
//! library draws, with the first two convolutions frozen; then the same net from scratch, on the same images. A minute
//! later, the one with the module reads at least 88 % of the test images, and 10 % more of them than the other;
//! with `--assert` it fails if it does not. `--load FILE` takes the module from elsewhere.

#[allow(dead_code, reason = "only its convolutions are used")]
mod mnist_convnet;

use std::path::{Path, PathBuf};
use tensorpack::dataflow::{DataFlow, dataset::digits};
use tensorpack::predict::Module;
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// What `mnist_convnet` leaves.
const MODULE: &str = "train_log/mnist_convnet/features.safetensors";
/// So many images are trained on.
const IMAGES: u64 = 50;

struct Model {
    /// Made outside the tower function, called inside it. `None`: the same convolutions, as they are drawn.
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

/// The module in a file, with its first two convolutions frozen.
fn module(path: &Path) -> Result<Module> {
    if !path.exists() {
        return Err(Error::argument(format!("there is no module at {}", path.display()))
            .note("`cargo run --release --example mnist_convnet` makes one; --load FILE takes another"));
    }
    Ok(Module::load(path)?.freeze("conv[01]/.*"))
}

/// Trains a net with this module, or from scratch; the share of test images that it reads.
fn accuracy_with(module: Option<Module>, args: &TrainArgs, name: &str) -> Result<f64> {
    let config = TrainConfig::new(Model { module }, digits::train().take(IMAGES).shuffle().batch(25))
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(digits::test().batch(250), [ScalarStats::new("accuracy")]))
        .steps_per_epoch(100)
        .max_epoch(3);
    let runs = args.logdir.clone().unwrap_or_else(|| PathBuf::from("train_log/finetune"));
    let args = TrainArgs { logdir: Some(runs.join(name)), ..args.clone() };
    let trained = args.configure(config)?.train()?;
    trained.monitors.latest("validation_accuracy").ok_or_else(|| Error::argument("no epoch was trained"))
}

fn main() -> Result<()> {
    let mut args = TrainArgs::parse()?;
    args.without(&["--fake", "--full"])?;
    let path = args.load.take().unwrap_or_else(|| MODULE.into());
    let learnt = accuracy_with(Some(module(&path)?), &args, "module")?;
    let drawn = accuracy_with(None, &args, "scratch")?;
    println!("read with the module: {:.1} %, from scratch: {:.1} %", 100.0 * learnt, 100.0 * drawn);
    if args.assert && (learnt < 0.88 || learnt < drawn + 0.1) {
        return Err(Error::argument("the module was to reach 88 %, and 10 % more than without it"));
    }
    Ok(())
}
