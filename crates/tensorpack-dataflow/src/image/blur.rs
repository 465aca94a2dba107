//! Gaussian blur.

use super::pixels::{PixelValue, dispatch_pixel_type, image_size, shape_like};
use super::{Augmentor, Transform, photometric};
use crate::SampleRng;
use tensorpack_tensor::{HostTensor, Result};

/// Blurs the image with a Gaussian kernel of random size.
#[derive(Clone, Debug)]
pub struct GaussianBlur {
    radius: (usize, usize),
    sigma: (f64, f64),
    symmetric: bool,
}

impl GaussianBlur {
    /// Uses kernels of `2 k + 1` pixels with `k` in `min..end`.
    pub fn new(min: usize, end: usize) -> GaussianBlur {
        GaussianBlur { radius: (min, end), sigma: (0.0, 0.0), symmetric: true }
    }

    /// Sets the range of the standard deviation. 0 derives it from the kernel size.
    #[must_use]
    pub fn sigma(self, min: f64, max: f64) -> GaussianBlur {
        GaussianBlur { sigma: (min, max), ..self }
    }

    /// Draws separate kernels for the horizontal and the vertical direction.
    #[doc(alias = "symmetric")]
    #[must_use]
    pub fn asymmetric(self) -> GaussianBlur {
        GaussianBlur { symmetric: false, ..self }
    }
}

impl Augmentor for GaussianBlur {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (min, end) = self.radius;
        let mut draw = || {
            let radius = min + rng.below(end.saturating_sub(min) as u64) as usize;
            gaussian_kernel(radius, rng.uniform_range(self.sigma.0, self.sigma.1))
        };
        let horizontal = draw();
        let vertical = if self.symmetric { horizontal.clone() } else { draw() };
        photometric("GaussianBlur", move |image| blur(&image, &horizontal, &vertical))
    }
}

/// Returns a normalized Gaussian kernel of `2 * radius + 1` weights.
fn gaussian_kernel(radius: usize, sigma: f64) -> Vec<f32> {
    // Without a sigma, OpenCV uses fixed binomial weights for small kernels.
    let table: &[f32] = match radius {
        _ if sigma > 0.0 => &[],
        0 => &[1.0],
        1 => &[0.25, 0.5, 0.25],
        2 => &[0.0625, 0.25, 0.375, 0.25, 0.0625],
        3 => &[0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125],
        4 => &[
            0.015625, 0.05078125, 0.1171875, 0.19921875, 0.234375, 0.19921875, 0.1171875, 0.05078125,
            0.015625,
        ],
        _ => &[],
    };
    if !table.is_empty() {
        return table.to_vec();
    }
    let sigma = if sigma > 0.0 { sigma } else { 0.3 * (radius as f64 - 1.0) + 0.8 };
    let weights: Vec<f64> =
        (0..=2 * radius).map(|i| (-0.5 * ((i as f64 - radius as f64) / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| (w / sum) as f32).collect()
}

/// Convolves rows, then columns, replicating the border pixels.
fn blur(image: &HostTensor, horizontal: &[f32], vertical: &[f32]) -> Result<HostTensor> {
    let (h, w, c) = image_size(image)?;
    dispatch_pixel_type!(image, T => {
        let values = image.as_slice::<T>()?;
        let mut rows = vec![0.0f32; h * w * c];
        for (row, out) in values.chunks_exact(w * c).zip(rows.chunks_exact_mut(w * c)) {
            for (i, out) in out.iter_mut().enumerate() {
                let at = |k: usize| row[replicate_index(i / c, k, horizontal, w) * c + i % c].to_f32();
                *out = horizontal.iter().enumerate().map(|(k, weight)| weight * at(k)).sum();
            }
        }
        let mut out = Vec::with_capacity(h * w * c);
        let mut sums = vec![0.0f32; w * c];
        for y in 0..h {
            sums.fill(0.0);
            for (k, weight) in vertical.iter().enumerate() {
                let row = &rows[replicate_index(y, k, vertical, h) * w * c..][..w * c];
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
            }
            out.extend(sums.iter().map(|&x| T::from_f32(x)));
        }
        HostTensor::new(shape_like(image, h, w, c), out)
    })
}

/// Returns the index of the pixel under weight `k` of a kernel centered at `at`, clamped to the
/// image.
fn replicate_index(at: usize, k: usize, kernel: &[f32], n: usize) -> usize {
    (at + k).saturating_sub(kernel.len() / 2).min(n - 1)
}
