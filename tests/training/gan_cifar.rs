//! The GAN on CIFAR-10 of `gan_wgan_gp`, and its score.

use crate::gan_wgan_gp::gan::GanTrainer;
use crate::gan_wgan_gp::gan_cifar::{
    CLASSES, Classifier, ClassifierScore, Score, critic, directory, generator, score,
};
use crate::gan_wgan_gp::{Images, WganGp};
use std::path::{Path, PathBuf};
use tensorpack::dataflow::FromFn;
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{TrainArgs, Trained};

fn one_hot(class: usize) -> [f64; CLASSES] {
    let mut row = [0.0; CLASSES];
    row[class] = 1.0;
    row
}

#[test]
fn the_score_is_that_of_the_definition() {
    let is = |rows: &[[f64; CLASSES]], parts: usize, mean: f64, deviation: f64| {
        let found = score(&rows.concat(), parts);
        let distance = (found.mean - mean).abs() + (found.deviation - deviation).abs();
        assert!(distance < 1e-9, "{found:?}, not {mean} and {deviation}");
    };
    // Nothing is known about any image, or all are of one class.
    is(&[[0.1; CLASSES]; 20], 2, 1.0, 0.0);
    is(&[one_hot(3); 20], 2, 1.0, 0.0);
    // Every image is of one class, and all classes are equally frequent.
    let balanced: Vec<_> = (0..20).map(|i| one_hot(i % CLASSES)).collect();
    is(&balanced, 2, 10.0, 0.0);
    is(&[&balanced[..], &[one_hot(3); 20]].concat(), 2, 5.5, 4.5);
    // Images that are equally probable in two classes; the one that remains does not count.
    let pairs: Vec<_> = (0..21)
        .map(|i| {
            let mut row = [0.0; CLASSES];
            (row[2 * (i % 5)], row[2 * (i % 5) + 1]) = (0.5, 0.5);
            row
        })
        .collect();
    is(&pairs, 2, 5.0, 0.0);
    assert_eq!(Score { mean: 5.5, deviation: 0.25 }.to_string(), "5.50 ± 0.25");
}

const CHANNELS: usize = 4;
const BATCH: usize = 3;
const Z: usize = 128;

/// Trains for this many epochs of 5 steps on random images.
fn train(dir: &Path, epochs: u64) -> Trained {
    let images = FromFn::new(u64::MAX / 2, |index| {
        let rng = CounterRng::new(index, "images");
        let bytes = (0..BATCH as u64 * 32 * 32 * 3).map(|i| (rng.uniform(0, i) * 256.0) as u8);
        Ok(vec![HostTensor::new([BATCH, 32, 32, 3], bytes.collect())?])
    });
    let model = WganGp { batch: BATCH, images: Images::Cifar(CHANNELS, Schedule::constant(1e-3)) };
    let args = TrainArgs::parse_options(Vec::<String>::new()).unwrap();
    let gan = GanTrainer::new(model, FeedInput::new(images).boxed(), &args).unwrap();
    let made = |t: &TowerContext, z: &Tensor| generator(t, z, CHANNELS);
    let score = ClassifierScore::new(Classifier::untrained().unwrap(), made, Z).samples(20);
    let config = RunConfig::new().callback(ModelSaver::new()).callback(score).logdir(dir);
    gan.train_in_turn(config.steps_per_epoch(5).max_epoch(epochs), 1, 5).unwrap()
}

#[test]
fn the_residual_networks_train_and_resume() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at_once = train(whole.path(), 2);
    train(parts.path(), 1);
    let resumed = train(parts.path(), 2);
    let weights = |trained: &Trained, name: &str| trained.session.read(name).unwrap();
    for name in ["gen/up0/conv1/W", "gen/linear/W", "discrim/down0/shortcut/W", "discrim/out/W"] {
        assert_eq!(weights(&resumed, name), weights(&at_once, name), "{name}");
    }
    // After the last epoch only, since ten have not passed.
    let scores = at_once.monitors.history("classifier_score").to_vec();
    assert_eq!((scores.len(), scores[0].0), (1, 10));
    assert!((1.0..=10.0).contains(&scores[0].1), "{scores:?}");
    assert_eq!(resumed.monitors.history("classifier_score").last(), scores.last());
    assert!(at_once.monitors.latest("penalty").unwrap() > 0.0);
    // Weights of both networks have changed since the start.
    let start = train(tempfile::tempdir().unwrap().path(), 0);
    for name in ["gen/up0/conv1/W", "discrim/same1/conv2/W"] {
        assert_ne!(weights(&start, name), weights(&at_once, name), "{name}");
    }
}

/// The sizes and the numbers of parameters of the paper's networks, with 128 channels.
#[test]
fn the_residual_networks_are_those_of_the_paper() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let z = graph.constant(HostTensor::zeros(DType::F32, [2, 128]).unwrap());
    let images = generator(&t, &z, 128);
    let scores = critic(&t, &images, 128);
    let sizes = |x: &Tensor| x.shape().known().unwrap();
    assert_eq!((sizes(&images), sizes(&scores)), (vec![2, 32, 32, 3], vec![2, 1]));
    let graph = graph.freeze().unwrap();
    let count = |of: &str| -> usize {
        let of = graph.variables().iter().filter(|v| v.trainable && v.name.starts_with(of));
        of.map(|v| v.sizes.iter().product::<usize>()).sum()
    };
    let conv = 128 * 128 * 9;
    // The linear layer; blocks of two convolutions (one has a bias), a shortcut and two normalizations; a
    // normalization and the last convolution.
    let block = 2 * conv + 128 + (128 * 128 + 128) + 4 * 128;
    assert_eq!(count("gen/"), 129 * 2048 + 3 * block + 2 * 128 + (128 * 3 * 9 + 3));
    let first = (3 * 128 * 9 + 128) + (conv + 128) + (3 * 128 + 128);
    let down = 2 * (conv + 128) + (128 * 128 + 128);
    assert_eq!(count("discrim/"), first + down + 2 * 2 * (conv + 128) + 129);
}

#[test]
fn a_classifier_is_trained_only_if_samples_are_evaluated() {
    let directory = |line: &[&str], given: Option<&str>| {
        let args =
            TrainArgs::parse_options(line.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        directory(&args, given.map(PathBuf::from))
    };
    assert_eq!(directory(&[], Some("a")).unwrap(), Some(PathBuf::from("a")));
    assert!(directory(&["--seed=3"], None).unwrap().is_some());
    for option in ["--fake", "--dry-run"] {
        assert_eq!(directory(&[option], Some("a")).unwrap(), None, "{option}");
    }
    let e = directory(&["--logdir=a"], Some("a")).unwrap_err();
    assert!(e.to_string().contains("--classifier DIR names another"), "{e}");
}
