//! Color and brightness augmentors.

use super::pixels::{PixelValue, channel_means, dispatch_pixel_type, image_size, map_values, rgb_size};
use super::{Augmentor, Transform, luma, photometric};
use crate::SampleRng;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// Adds a random offset to all values.
#[derive(Clone, Debug)]
pub struct Brightness {
    range: (f64, f64),
    clip: bool,
}

impl Brightness {
    /// Offsets by at most `max` in either direction.
    pub fn new(max: f64) -> Brightness {
        Brightness::range(-max, max)
    }

    /// Sets the range of the offset.
    #[doc(alias = "between")]
    pub fn range(min: f64, max: f64) -> Brightness {
        Brightness { range: (min, max), clip: true }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> Brightness {
        Brightness { clip: false, ..self }
    }
}

impl Augmentor for Brightness {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (by, clip) = (rng.uniform_range(self.range.0, self.range.1) as f32, self.clip);
        photometric("Brightness", move |image| map_values(image, clip, |_, x| x + by))
    }
}

/// Multiplies all values by a random factor.
#[derive(Clone, Debug)]
pub struct BrightnessScale {
    range: (f64, f64),
    clip: bool,
}

impl BrightnessScale {
    /// Sets the range of the factor.
    pub fn new(min: f64, max: f64) -> BrightnessScale {
        BrightnessScale { range: (min, max), clip: true }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> BrightnessScale {
        BrightnessScale { clip: false, ..self }
    }
}

impl Augmentor for BrightnessScale {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (by, clip) = (rng.uniform_range(self.range.0, self.range.1) as f32, self.clip);
        photometric("BrightnessScale", move |image| map_values(image, clip, |_, x| x * by))
    }
}

/// Scales the deviation of every channel from its mean by a random factor.
#[derive(Clone, Debug)]
pub struct Contrast {
    range: (f64, f64),
    grayscale_mean: bool,
    clip: bool,
}

impl Contrast {
    /// Sets the range of the factor.
    pub fn new(min: f64, max: f64) -> Contrast {
        Contrast { range: (min, max), grayscale_mean: false, clip: true }
    }

    /// Uses one mean for all channels, that of the grayscale image.
    #[doc(alias = "of_grey")]
    #[must_use]
    pub fn grayscale_mean(self) -> Contrast {
        Contrast { grayscale_mean: true, ..self }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> Contrast {
        Contrast { clip: false, ..self }
    }
}

impl Augmentor for Contrast {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (by, clip, grayscale_mean) =
            (rng.uniform_range(self.range.0, self.range.1), self.clip, self.grayscale_mean);
        photometric("Contrast", move |image| {
            let mut means = channel_means(&image)?;
            if grayscale_mean {
                rgb_size(&image)?;
                // The mean is linear.
                means = vec![0.299 * means[0] + 0.587 * means[1] + 0.114 * means[2]; 3];
            }
            let offsets: Vec<f32> = means.iter().map(|mean| (mean * (1.0 - by)) as f32).collect();
            map_values(image, clip, |c, x| x * by as f32 + offsets[c])
        })
    }
}

/// Blends the image with its grayscale version, or away from it.
#[derive(Clone, Debug)]
pub struct Saturation {
    range: (f64, f64),
    clip: bool,
}

impl Saturation {
    /// Scales the saturation by a factor in `1 - max ..= 1 + max`.
    pub fn new(max: f64) -> Saturation {
        Saturation::range(1.0 - max, 1.0 + max)
    }

    /// Sets the range of the saturation factor: 0 is grayscale, 1 the original.
    #[doc(alias = "between")]
    pub fn range(min: f64, max: f64) -> Saturation {
        Saturation { range: (min, max), clip: true }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> Saturation {
        Saturation { clip: false, ..self }
    }
}

impl Augmentor for Saturation {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        if self.range.0 < 0.0 {
            return Err(Error::argument("Saturation: the factor must not be negative"));
        }
        let (by, clip) = (rng.uniform_range(self.range.0, self.range.1) as f32, self.clip);
        photometric("Saturation", move |mut image| {
            rgb_size(&image)?;
            match image.dtype() {
                DType::U8 => saturate_u8(image.as_mut_slice()?, by),
                _ => {
                    for p in image.as_mut_slice::<f32>()?.as_chunks_mut::<3>().0 {
                        let gray = luma::luma_f32(p[0], p[1], p[2]) * (1.0 - by);
                        *p = p.map(|x| x * by + gray);
                        if clip {
                            *p = p.map(|x| x.clamp(0.0, 255.0));
                        }
                    }
                }
            }
            Ok(image)
        })
    }
}

/// Fixed-point arithmetic with 14 fractional bits, which vectorizes better.
fn saturate_u8(values: &mut [u8], by: f32) {
    const ONE: i32 = 1 << 14;
    let by = (by * ONE as f32).round() as i32;
    for p in values.as_chunks_mut::<3>().0 {
        let gray = i32::from(luma::luma_u8(p[0], p[1], p[2])) * (ONE - by) + ONE / 2;
        *p = p.map(|x| ((i32::from(x) * by + gray) >> 14).clamp(0, 255) as u8);
    }
}

/// Rotates the hue.
#[derive(Clone, Debug)]
pub struct Hue {
    range: (f64, f64),
}

impl Hue {
    /// Rotates by an angle in this range, in units of two degrees (180 is a full turn, as in
    /// OpenCV).
    pub fn new(min: f64, max: f64) -> Hue {
        Hue { range: (min, max) }
    }
}

impl Augmentor for Hue {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let degrees = 2.0 * rng.uniform_range(self.range.0, self.range.1) as f32;
        photometric("Hue", move |mut image| {
            rgb_size(&image)?;
            dispatch_pixel_type!(image, T => {
                for p in image.as_mut_slice::<T>()?.as_chunks_mut::<3>().0 {
                    *p = rotate_hue(p.map(T::to_f32), degrees).map(T::from_f32);
                }
            });
            Ok(image)
        })
    }
}

/// Rotates the hue of a color and keeps its saturation and value.
fn rotate_hue([r, g, b]: [f32; 3], degrees: f32) -> [f32; 3] {
    let value = r.max(g).max(b);
    let chroma = value - r.min(g).min(b);
    if chroma == 0.0 {
        return [r, g, b];
    }
    // The hue in sixths of a turn.
    let hue = if value == r {
        (g - b) / chroma
    } else if value == g {
        2.0 + (b - r) / chroma
    } else {
        4.0 + (r - g) / chroma
    };
    let hue = (hue + degrees / 60.0).rem_euclid(6.0);
    // Each channel is at its maximum within one sixth of its own hue, and falls to the minimum over
    // the next sixth on either side.
    [0.0, 2.0, 4.0].map(|own: f32| {
        let distance = (hue - own).abs().min(6.0 - (hue - own).abs());
        value - chroma * (distance - 1.0).clamp(0.0, 1.0)
    })
}

/// Adds a random combination of a data set's principal color components (AlexNet's PCA lighting).
#[derive(Clone, Debug)]
pub struct Lighting {
    std: f64,
    values: [f64; 3],
    vectors: [[f64; 3]; 3],
    clip: bool,
}

impl Lighting {
    /// Creates the augmentor from a standard deviation and the eigenvalues and eigenvectors (one
    /// per column) of the color covariance.
    pub fn new(std: f64, eigenvalues: [f64; 3], eigenvectors: [[f64; 3]; 3]) -> Lighting {
        Lighting { std, values: eigenvalues, vectors: eigenvectors, clip: true }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> Lighting {
        Lighting { clip: false, ..self }
    }
}

impl Lighting {
    /// Returns the offsets of red, green and blue.
    fn pca_shift(&self, normals: [f64; 3]) -> [f32; 3] {
        let weight = |i: usize| self.values[i] * normals[i] * self.std;
        self.vectors.map(|row| row.iter().enumerate().map(|(i, v)| v * weight(i)).sum::<f64>() as f32)
    }
}

impl Augmentor for Lighting {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        rgb_size(image).map_err(|e| e.within("Lighting"))?;
        let (by, clip) = (self.pca_shift([(); 3].map(|()| rng.normal())), self.clip);
        photometric("Lighting", move |image| map_values(image, clip, |c, x| x + by[c]))
    }
}

/// Applies a random gamma correction.
#[derive(Clone, Debug)]
pub struct Gamma {
    range: (f64, f64),
}

impl Gamma {
    /// Raises values to the power `1 / (1 + gamma)` with gamma in this range; above 0 is brighter.
    /// f32 images are rounded down to integers.
    pub fn new(min: f64, max: f64) -> Gamma {
        Gamma { range: (min, max) }
    }
}

impl Default for Gamma {
    fn default() -> Gamma {
        Gamma::new(-0.5, 0.5)
    }
}

impl Augmentor for Gamma {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let power = 1.0 / (1.0 + rng.uniform_range(self.range.0, self.range.1));
        photometric("Gamma", move |image| {
            let level = |x: usize| (((x as f64 / 255.0).powf(power)) * 255.0) as f32;
            let table: [f32; 256] = std::array::from_fn(|x| level(x).trunc());
            map_values(image, true, |_, x| table[usize::from(x.clamp(0.0, 255.0) as u8)])
        })
    }
}

/// Clips values to a range.
#[derive(Clone, Debug)]
pub struct Clip {
    min: f32,
    max: f32,
}

impl Clip {
    /// Clips to `min..=max`.
    pub fn new(min: f32, max: f32) -> Clip {
        Clip { min, max }
    }
}

impl Default for Clip {
    fn default() -> Clip {
        Clip::new(0.0, 255.0)
    }
}

impl Augmentor for Clip {
    fn transform(&self, image: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        image_size(image)?;
        let (min, max) = (self.min, self.max);
        photometric("Clip", move |image| map_values(image, false, |_, x| x.max(min).min(max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lighting_adds_the_pca_shift() {
        let values = [0.2175, 0.0188, 0.0045].map(|v| v * 255.0);
        let vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]];
        let actual = Lighting::new(1.0, values, vectors).pca_shift([0.5, -1.5, 0.8]);
        // From tests/golden/make_golden.py.
        for (actual, expected) in actual.into_iter().zip([-20.5412, -16.8212, -10.8018]) {
            assert!((actual - expected).abs() < 1e-3, "{actual}, not {expected}");
        }
    }

    #[test]
    fn saturation_of_u8_matches_f32() {
        for i in 0..4096u32 {
            let pixel = [i, i / 16, i / 256].map(|x| (x % 16 * 17) as u8);
            for by in [0.0, 0.61, 1.0, 1.4] {
                let mut actual = pixel;
                saturate_u8(&mut actual, by);
                let gray = f32::from(luma::luma_u8(pixel[0], pixel[1], pixel[2]));
                for (actual, x) in actual.into_iter().zip(pixel) {
                    let expected = (f32::from(x) * by + gray * (1.0 - by)).clamp(0.0, 255.0);
                    assert!(
                        (f32::from(actual) - expected).abs() < 0.52,
                        "{pixel:?} by {by}: {actual}, not {expected}"
                    );
                }
            }
        }
    }
}
