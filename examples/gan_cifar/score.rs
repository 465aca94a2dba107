//! The score of samples: that of Salimans et al. (2016), with another classifier.

use super::{CLASSES, Classifier};
use std::fmt;
use tensorpack::callback::{GraphCx, Statistic, TrainCx, When};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

/// The parts in which images are evaluated, for the standard deviation.
const PARTS: usize = 10;
/// The number of samples.
const SAMPLES: usize = 10_000;
/// Samples that are generated at once.
const BATCH: usize = 500;

/// The mean and the standard deviation of the scores of the parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ± {:.2}", self.mean, self.deviation)
    }
}

/// Returns the score of images from the probabilities of their classes, row by row, in this many parts of
/// equal size.
///
/// The score of a part is the exponential of the mean KL divergence of an image's probabilities from
/// their mean over the part. It is 1 if all images have the same probabilities, and the number of classes
/// if every image is certainly of one class and all classes are equally frequent.
pub(crate) fn score(probabilities: &[f64], parts: usize) -> Score {
    let size = probabilities.len() / CLASSES / parts * CLASSES;
    let scores: Vec<f64> =
        probabilities.chunks_exact(size.max(CLASSES)).take(parts).map(score_part).collect();
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let variance = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / count;
    Score { mean, deviation: variance.sqrt() }
}

fn score_part(probabilities: &[f64]) -> f64 {
    let count = (probabilities.len() / CLASSES) as f64;
    let mut mean = [0.0; CLASSES];
    for row in probabilities.chunks(CLASSES) {
        mean.iter_mut().zip(row).for_each(|(mean, p)| *mean += p / count);
    }
    let divergence = |row: &[f64]| -> f64 {
        row.iter().zip(&mean).filter(|(p, _)| **p > 0.0).map(|(p, mean)| p * (p / mean).ln()).sum()
    };
    (probabilities.chunks(CLASSES).map(divergence).sum::<f64>() / count).exp()
}

type Generator = Box<dyn Fn(&TowerContext, &Tensor) -> Tensor>;

/// Reports the score of a generator's samples after every few epochs and after the last: the statistics
/// `classifier_score` and `classifier_score_std`. The noise is always the same.
pub(crate) struct ClassifierScore {
    classifier: Classifier,
    generator: Generator,
    /// The length of the noise vector.
    length: usize,
    every: u64,
    samples: usize,
    /// The name of the noise, and the generator's output for it.
    tensors: Option<(String, Tensor)>,
}

impl ClassifierScore {
    /// Evaluates 10,000 samples of `generator`, with normal noise of this length.
    pub(crate) fn new(
        classifier: Classifier,
        generator: impl Fn(&TowerContext, &Tensor) -> Tensor + 'static,
        length: usize,
    ) -> ClassifierScore {
        let generator = Box::new(generator);
        ClassifierScore { classifier, generator, length, every: 10, samples: SAMPLES, tensors: None }
    }

    /// Sets the number of samples, a multiple of 10. Up to 500 are generated at once.
    pub(crate) fn samples(self, samples: usize) -> ClassifierScore {
        ClassifierScore { samples, ..self }
    }

    fn batch(&self) -> usize {
        BATCH.min(self.samples)
    }

    /// Returns the score of test images, and that of noise: bytes that are all equally probable.
    pub(crate) fn scale(&self) -> Result<[Score; 2]> {
        let noise = CounterRng::new(0, "noise images");
        let mut probabilities = Vec::new();
        for start in (0..self.samples).step_by(self.batch()) {
            let bytes = (0..self.batch() * 32 * 32 * 3)
                .map(|i| (noise.uniform(start as u64, i as u64) * 256.0) as u8);
            let images = HostTensor::new([self.batch(), 32, 32, 3], bytes.collect())?;
            probabilities.extend(self.classifier.probabilities(&images)?);
        }
        Ok([score(&self.classifier.of_test_images()?, PARTS), score(&probabilities, PARTS)])
    }

    /// Returns the score of samples with the current weights.
    fn evaluate(&self, (z, images): &(String, Tensor), cx: &TrainCx<'_>) -> Result<Score> {
        let rng = CounterRng::new(0, "scored samples");
        let mut probabilities = Vec::new();
        for start in (0..self.samples).step_by(self.batch()) {
            cx.check_interrupt()?;
            let noise = (0..self.batch() * self.length).map(|i| rng.normal(start as u64, i as u64) as f32);
            let noise = HostTensor::new([self.batch(), self.length], noise.collect())?;
            let made = cx.session().run(&[images], &[(z, &noise)])?.swap_remove(0);
            // As in a PNG: rounded to bytes.
            let bytes = made.as_slice::<f32>()?.iter().map(|x| ((x + 1.0) * 127.5).round() as u8);
            let bytes = HostTensor::new(made.sizes(), bytes.collect())?;
            probabilities.extend(self.classifier.probabilities(&bytes)?);
        }
        Ok(score(&probabilities, PARTS))
    }
}

impl Callback for ClassifierScore {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let graph = g.graph();
        let z = graph.placeholder(&TensorSpec::f32("score/z", [Some(self.batch()), Some(self.length)]));
        let t = TowerContext::inference(graph);
        let images = t.name_scope("score", |t| t.reuse(|t| (self.generator)(t, &z)));
        self.tensors = Some((z.name(), images.cast(DType::F32)));
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let due = cx.epoch_num.is_multiple_of(self.every) || cx.epoch_num == cx.max_epoch;
        let Some(tensors) = self.tensors.as_ref().filter(|_| due) else { return Ok(()) };
        let Score { mean, deviation } = self.evaluate(tensors, cx)?;
        cx.put_scalar("classifier_score", mean);
        cx.put_scalar("classifier_score_std", deviation);
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        ["classifier_score", "classifier_score_std"].map(|name| Statistic::new(name, When::Epoch)).into()
    }
}
