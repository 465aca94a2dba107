//! Evaluates the generator's samples with a digit classifier.

use super::mnist_convnet;
use tensorpack::dataflow::DataFlow;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The run directory of the classifier.
const CLASSIFIER: &str = "train_log/digit_classifier";
const CLASSES: usize = 10;
/// A sample counts as a digit if the classifier's confidence is above this.
const SURE: f64 = 0.9;
/// A class is found if at least one sample in a hundred counts as it.
const SHARE: usize = 100;

/// The result that `--assert` requires.
pub(crate) struct Bar {
    /// The number of classes.
    pub(crate) classes: usize,
    /// More than this part of the samples must count, in percent.
    pub(crate) percent: usize,
}

impl Bar {
    /// The bar of most examples.
    pub(crate) const USUAL: Bar = Bar { classes: 8, percent: 50 };
}

/// Prints the classifier's evaluation of a trained generator's samples, and returns the class of each
/// sample that counts as a digit. With `--assert`, a result below the bar is an error.
pub(crate) fn judge(args: &TrainArgs, trained: &Trained, bar: &Bar) -> Result<Vec<Option<usize>>> {
    if args.fake {
        return Ok(Vec::new());
    }
    let samples = trained.session.graph().fetch("samples")?;
    let samples = trained.session.run(&[&samples], &[])?.swap_remove(0);
    let recognized = look(&classifier(args)?, &samples)?;
    let mut found = [0; CLASSES];
    recognized.iter().flatten().for_each(|&class| found[class] += 1);
    let sure: usize = found.iter().sum();
    let of = recognized.len();
    let classes = found.iter().filter(|&&n| n * SHARE >= of).count();
    say!("of {of} samples {sure} are digits with confidence over {SURE}; for each digit {found:?}");
    say!("classes found: {classes} of {CLASSES}");
    if args.assert && (classes < bar.classes || 100 * sure <= bar.percent * of) {
        let why =
            format!("fewer than {} classes found, or confidence over {SURE} in too few samples", bar.classes);
        return Err(Error::argument(why));
    }
    Ok(recognized)
}

/// Returns the model of `mnist_convnet`, trained for two epochs. The first call takes about a
/// minute; later calls find the completed run.
fn classifier(args: &TrainArgs) -> Result<OfflinePredictor> {
    say!("evaluating the samples with the classifier in {CLASSIFIER}, which is trained first if necessary");
    let (train, ..) = mnist_convnet::data()?;
    let config = TrainConfig::new(mnist_convnet::Convnet, train.shuffle().batch(128))
        .callback(ModelSaver::new())
        .session(SessionOptions { threads: args.threads_per_device, ..SessionOptions::default() })
        .max_epoch(2)
        .logdir(CLASSIFIER);
    launch_train_with_config(config, SimpleTrainer::new())?.get_predictor(&["image"], &["logits"])
}

/// Returns the classes of the samples `[n, 32, 32, 1]` that the classifier recognizes.
fn look(classifier: &OfflinePredictor, samples: &HostTensor) -> Result<Vec<Option<usize>>> {
    let pixels = samples.as_slice::<f32>()?;
    let of = samples.sizes()[0];
    // MNIST digits are 28x28: crop the padding.
    let inside = |image: &[f32]| image.chunks(32).skip(2).take(28).flat_map(|r| r[2..30].to_vec()).collect();
    let images: Vec<Vec<f32>> = pixels.chunks(32 * 32).map(inside).collect();
    let logits = classifier.predict(&[&HostTensor::new([of, 28, 28], images.concat())?])?.swap_remove(0);
    let recognize = |row: &[f64]| {
        let (class, largest) = row
            .iter()
            .enumerate()
            .fold((0, f64::MIN), |best, (i, &x)| if x > best.1 { (i, x) } else { best });
        let confidence = 1.0 / row.iter().map(|x| (x - largest).exp()).sum::<f64>();
        (confidence > SURE).then_some(class)
    };
    Ok(logits.to_f64_vec().chunks(CLASSES).map(recognize).collect())
}
