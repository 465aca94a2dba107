//! The classifier of CIFAR-10 that evaluates samples.

use std::path::{Path, PathBuf};
use tensorpack::dataflow::dataset::cifar10;
use tensorpack::dataflow::image::{AugmentExt, AugmentorList, Flip, Paste, RandomCrop};
use tensorpack::dataflow::{DataFlow, Flow, Seed};
use tensorpack::graph::Fan;
use tensorpack::io::SaverRestore;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

pub(crate) const CLASSES: usize = 10;

/// Its run directory, unless another one is given.
const DIR: &str = "train_log/cifar_classifier";
const EPOCHS: u64 = 15;
const STEPS: u64 = 390;
/// Images that are classified at once.
const BATCH: usize = 500;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(u8, [None, 32, 32, 3])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

/// Six convolutions in three sizes.
struct Convnet;

impl Model for Convnet {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let mut x = image.cast(DType::F32) / 64.0 - 2.0;
        let he = || Init::VarianceScaling { scale: 2.0, fan: Fan::Out };
        for i in 0..6 {
            let conv = Conv2d::new(32 << (i / 2), 3).no_bias().init(he());
            x = BatchNorm::new().relu().apply(t, &format!("bn{i}"), &conv.apply(t, &format!("conv{i}"), &x));
            if i % 2 == 1 && i < 5 {
                x = x.max_pool(2);
            }
        }
        let logits = Linear::new(CLASSES).apply(t, "linear", &x.global_average_pool()).named("logits");
        let loss = logits.sparse_softmax_cross_entropy(&label).mean().named("loss");
        let error =
            logits.argmax(-1).not_equal(&label.cast(DType::I64)).cast(DType::F32).mean().named("error");
        t.moving_summary(&[&loss, &error]);
        (loss + regularize_cost(t, ".*/W", l2_regularizer(5e-4))).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(Schedule::cosine(0.1, 0.0, EPOCHS * STEPS).warm_up(STEPS), 0.9).boxed()
    }
}

/// Returns the run directory of the classifier, `given` or the usual one; `None` if this command
/// evaluates no samples, because it does not train on CIFAR-10 or does not train at all.
pub(crate) fn directory(args: &TrainArgs, given: Option<PathBuf>) -> Result<Option<PathBuf>> {
    if args.fake || args.dry_run {
        return Ok(None);
    }
    let dir = given.unwrap_or_else(|| PathBuf::from(DIR));
    if args.logdir.as_ref().is_some_and(|logdir| Path::new(logdir) == dir) {
        let why = format!("--logdir and the classifier's directory are both {}", dir.display());
        return Err(Error::argument(why).note("--classifier DIR names another one"));
    }
    Ok(Some(dir))
}

/// A trained classifier.
pub(crate) struct Classifier {
    predictor: OfflinePredictor,
}

impl Classifier {
    /// Returns the classifier in a run directory. The first call trains it, for 15 epochs; later calls
    /// find the completed run.
    pub(crate) fn load(args: &TrainArgs, dir: &Path) -> Result<Classifier> {
        say!("the classifier is in {}; it is trained first if necessary", dir.display());
        let device = args.devices.first().copied().unwrap_or_default();
        let options =
            || SessionOptions { device, threads: args.threads_per_device, ..SessionOptions::default() };
        let augmentors = AugmentorList::new()
            .then(Paste::center(40, 40))
            .then(RandomCrop::new(32, 32))
            .then(Flip::horizontal());
        let train = cifar10::train()?.into_flow().shuffle().augment_image(0, augmentors).batch(128);
        let config = TrainConfig::new(Convnet, train.prefetch(4))
            .callback(ModelSaver::new())
            .callback(InferenceRunner::new(test_images()?, [ScalarStats::from_names(["loss", "error"])]))
            .session(options())
            .steps_per_launch(args.steps_per_launch.unwrap_or(1.into()))
            .steps_per_epoch(STEPS)
            .max_epoch(EPOCHS)
            .logdir(dir);
        let trained = launch_train_with_config(config, SimpleTrainer::new())
            .map_err(|e| e.within("the classifier").note("--classifier DIR names its directory"))?;
        if let Some(error) = trained.monitors.latest("validation_error") {
            say!("the classifier's test error is {:.1} %", 100.0 * error);
        }
        drop(trained);
        Classifier::new(predict_config()?.session_init(SaverRestore::new(dir)).session(options()))
    }

    /// Creates a classifier with random weights.
    pub(crate) fn untrained() -> Result<Classifier> {
        Classifier::new(predict_config()?)
    }

    fn new(config: PredictConfig) -> Result<Classifier> {
        Ok(Classifier { predictor: OfflinePredictor::new(config)? })
    }

    /// Returns the probabilities of the classes for images `[n, 32, 32, 3]` (u8), row by row.
    pub(crate) fn probabilities(&self, images: &HostTensor) -> Result<Vec<f64>> {
        let logits = self.predictor.predict(&[images])?.swap_remove(0);
        let softmax = |row: &[f64]| {
            let largest = row.iter().copied().fold(f64::MIN, f64::max);
            let powers: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(move |x| x / sum)
        };
        Ok(logits.to_f64_vec().chunks(CLASSES).flat_map(softmax).collect())
    }

    /// Returns the probabilities for the test images.
    pub(crate) fn of_test_images(&self) -> Result<Vec<f64>> {
        let mut probabilities = Vec::new();
        let mut reader = test_images()?.open(Seed::new(0), &Default::default())?;
        while let Some(batch) = reader.read()? {
            probabilities.extend(self.probabilities(&batch[0])?);
        }
        Ok(probabilities)
    }
}

fn predict_config() -> Result<PredictConfig> {
    Ok(PredictConfig::new(Convnet, ["logits"])?.inputs(["image"]))
}

/// The test images with their classes.
fn test_images() -> Result<Flow> {
    Ok(cifar10::test()?.into_flow().batch(BATCH).keep_remainder().into_flow())
}
