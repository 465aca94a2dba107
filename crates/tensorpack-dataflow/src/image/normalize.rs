//! Normalization augmentors.

use super::convert::to_f32;
use super::pixels::{channel_means, image_size, map_values};
use super::{Augmentor, Transform, photometric};
use crate::SampleRng;
use tensorpack_tensor::{HostTensor, Result};

/// Subtracts the mean and divides by the standard deviation, which is at least `1 /
/// sqrt(elements)`. Returns f32.
#[derive(Clone, Debug, Default)]
pub struct MeanVarianceNormalize {
    per_channel: bool,
}

impl MeanVarianceNormalize {
    /// Normalizes over all values.
    pub fn new() -> MeanVarianceNormalize {
        MeanVarianceNormalize::default()
    }

    /// Normalizes every channel separately.
    #[doc(alias = "by_channel")]
    #[must_use]
    pub fn per_channel(self) -> MeanVarianceNormalize {
        MeanVarianceNormalize { per_channel: true }
    }
}

impl Augmentor for MeanVarianceNormalize {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let per_channel = self.per_channel;
        photometric("MeanVarianceNormalize", move |image| {
            let (h, w, c) = image_size(&image)?;
            let image = to_f32(image)?;
            let means = pooled(channel_means(&image)?, per_channel, mean);
            let mut variances = vec![0.0; c];
            for (i, &x) in image.as_slice::<f32>()?.iter().enumerate() {
                variances[i % c] += (f64::from(x) - means[i % c]).powi(2) / (h * w) as f64;
            }
            let min = 1.0 / ((h * w * c) as f64).sqrt();
            let deviations: Vec<f64> =
                pooled(variances, per_channel, mean).iter().map(|v| v.sqrt().max(min)).collect();
            map_values(image, false, |c, x| ((f64::from(x) - means[c]) / deviations[c]) as f32)
        })
    }
}

/// Rescales values linearly to a range. Returns f32.
#[derive(Clone, Debug)]
pub struct MinMaxNormalize {
    min: f64,
    max: f64,
    per_channel: bool,
}

impl MinMaxNormalize {
    /// Rescales to `min..=max`, with one scale for all channels.
    pub fn new(min: f64, max: f64) -> MinMaxNormalize {
        MinMaxNormalize { min, max, per_channel: false }
    }

    /// Rescales every channel separately.
    #[doc(alias = "by_channel")]
    #[must_use]
    pub fn per_channel(self) -> MinMaxNormalize {
        MinMaxNormalize { per_channel: true, ..self }
    }
}

impl Augmentor for MinMaxNormalize {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let MinMaxNormalize { min, max, per_channel } = *self;
        photometric("MinMaxNormalize", move |image| {
            let (_, _, c) = image_size(&image)?;
            let image = to_f32(image)?;
            let (mut low, mut high) = (vec![f64::INFINITY; c], vec![f64::NEG_INFINITY; c]);
            for (i, &x) in image.as_slice::<f32>()?.iter().enumerate() {
                (low[i % c], high[i % c]) = (low[i % c].min(x.into()), high[i % c].max(x.into()));
            }
            let low = pooled(low, per_channel, |v| v.iter().copied().fold(f64::INFINITY, f64::min));
            let high = pooled(high, per_channel, |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            map_values(image, false, |c, x| {
                let range = high[c] - low[c];
                // A constant image maps to the minimum.
                let share = if range > 0.0 { (f64::from(x) - low[c]) / range } else { 0.0 };
                ((max - min) * share + min) as f32
            })
        })
    }
}

/// Returns per-channel values, or their reduction repeated for every channel.
fn pooled(values: Vec<f64>, per_channel: bool, reduce: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    if per_channel { values } else { vec![reduce(&values); values.len()] }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
