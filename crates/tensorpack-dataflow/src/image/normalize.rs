//! Pictures on a common scale.

use super::convert::to_f32;
use super::picture::{channel_means, map_values, size};
use super::{Augmentor, Transform, photometric};
use crate::Draws;
use tensorpack_tensor::{HostTensor, Result};

/// Subtracts the mean and divides by the standard deviation (or by `1 / sqrt(elements)`, if it is below). Returns f32.
#[derive(Clone, Debug, Default)]
pub struct MeanVarianceNormalize {
    by_channel: bool,
}

impl MeanVarianceNormalize {
    /// Of all values.
    pub fn new() -> MeanVarianceNormalize {
        MeanVarianceNormalize::default()
    }

    /// Of each channel by itself.
    #[must_use]
    pub fn by_channel(self) -> MeanVarianceNormalize {
        MeanVarianceNormalize { by_channel: true }
    }
}

impl Augmentor for MeanVarianceNormalize {
    fn transform(&self, _: &HostTensor, _: &mut Draws) -> Result<Box<dyn Transform>> {
        let by_channel = self.by_channel;
        photometric("MeanVarianceNormalize", move |image| {
            let (h, w, c) = size(&image)?;
            let image = to_f32(image)?;
            let means = shared(channel_means(&image)?, by_channel, mean);
            let mut variances = vec![0.0; c];
            for (i, &x) in image.as_slice::<f32>()?.iter().enumerate() {
                variances[i % c] += (f64::from(x) - means[i % c]).powi(2) / (h * w) as f64;
            }
            let least = 1.0 / ((h * w * c) as f64).sqrt();
            let deviations: Vec<f64> =
                shared(variances, by_channel, mean).iter().map(|v| v.sqrt().max(least)).collect();
            map_values(image, false, |c, x| ((f64::from(x) - means[c]) / deviations[c]) as f32)
        })
    }
}

/// Stretches values to a range. Returns f32.
#[derive(Clone, Debug)]
pub struct MinMaxNormalize {
    least: f64,
    most: f64,
    by_channel: bool,
}

impl MinMaxNormalize {
    /// Between these, with one scale for all channels.
    pub fn new(least: f64, most: f64) -> MinMaxNormalize {
        MinMaxNormalize { least, most, by_channel: false }
    }

    /// Each channel by itself.
    #[must_use]
    pub fn by_channel(self) -> MinMaxNormalize {
        MinMaxNormalize { by_channel: true, ..self }
    }
}

impl Augmentor for MinMaxNormalize {
    fn transform(&self, _: &HostTensor, _: &mut Draws) -> Result<Box<dyn Transform>> {
        let MinMaxNormalize { least, most, by_channel } = *self;
        photometric("MinMaxNormalize", move |image| {
            let (_, _, c) = size(&image)?;
            let image = to_f32(image)?;
            let (mut low, mut high) = (vec![f64::INFINITY; c], vec![f64::NEG_INFINITY; c]);
            for (i, &x) in image.as_slice::<f32>()?.iter().enumerate() {
                (low[i % c], high[i % c]) = (low[i % c].min(x.into()), high[i % c].max(x.into()));
            }
            let low = shared(low, by_channel, |v| v.iter().copied().fold(f64::INFINITY, f64::min));
            let high = shared(high, by_channel, |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            map_values(image, false, |c, x| {
                let range = high[c] - low[c];
                // A picture of one value has no scale: it becomes the least.
                let share = if range > 0.0 { (f64::from(x) - low[c]) / range } else { 0.0 };
                ((most - least) * share + least) as f32
            })
        })
    }
}

/// Numbers of the channels, or one number of them all for each.
fn shared(by_channel: Vec<f64>, stay: bool, of_all: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    if stay { by_channel } else { vec![of_all(&by_channel); by_channel.len()] }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
