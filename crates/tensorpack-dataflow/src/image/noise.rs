//! Noise augmentors.

use super::convert::to_f32;
use super::pixels::{PixelValue, dispatch_pixel_type, image_size, rgb_size};
use super::{Augmentor, Channels, Transform, decode, photometric};
use crate::SampleRng;
use jpeg_encoder::{ColorType, Encoder};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Adds Gaussian noise to every value.
#[derive(Clone, Debug)]
pub struct GaussianNoise {
    sigma: f64,
    clip: bool,
}

impl GaussianNoise {
    /// Sets the standard deviation.
    pub fn new(sigma: f64) -> GaussianNoise {
        GaussianNoise { sigma, clip: true }
    }

    /// Does not clip f32 images to 0..255.
    #[must_use]
    pub fn no_clip(self) -> GaussianNoise {
        GaussianNoise { clip: false, ..self }
    }
}

impl Augmentor for GaussianNoise {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let noise: Vec<f32> = (0..image.len()).map(|_| (rng.normal() * self.sigma) as f32).collect();
        let clip = self.clip;
        photometric("GaussianNoise", move |image| {
            zip_values(image, &noise, |x, noise| if clip { (x + noise).clamp(0.0, 255.0) } else { x + noise })
        })
    }
}

/// Sets random values to 255 or 0.
#[derive(Clone, Debug)]
pub struct SaltPepperNoise {
    white: f64,
    black: f64,
}

impl SaltPepperNoise {
    /// Sets the fractions of values that become 255 and 0.
    pub fn new(white: f64, black: f64) -> SaltPepperNoise {
        SaltPepperNoise { white, black }
    }
}

impl Augmentor for SaltPepperNoise {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (white, black) = (self.white, self.black);
        if white + black > 1.0 {
            return Err(Error::argument(
                "SaltPepperNoise: the fractions of white and black sum to more than 1",
            ));
        }
        let drawn: Vec<f32> = (0..image.len()).map(|_| rng.uniform() as f32).collect();
        photometric("SaltPepperNoise", move |image| {
            zip_values(image, &drawn, |x, drawn| match f64::from(drawn) {
                drawn if drawn < black => 0.0,
                drawn if drawn > 1.0 - white => 255.0,
                _ => x,
            })
        })
    }
}

/// Combines every value with its noise.
fn zip_values(mut image: HostTensor, noise: &[f32], f: impl Fn(f32, f32) -> f32) -> Result<HostTensor> {
    image_size(&image)?;
    if image.len() != noise.len() {
        return Err(Error::shape(format!(
            "the noise has {} values, but the image has {}",
            noise.len(),
            image.len()
        )));
    }
    dispatch_pixel_type!(image, T => {
        for (x, &noise) in image.as_mut_slice::<T>()?.iter_mut().zip(noise) {
            *x = T::from_f32(f(x.to_f32(), noise));
        }
    });
    Ok(image)
}

/// Compresses the image as JPEG and decodes it again.
#[derive(Clone, Debug)]
pub struct JpegNoise {
    quality: (u8, u8),
}

impl JpegNoise {
    /// Uses a quality in `min..end`, out of 1 to 100.
    pub fn new(min: u8, end: u8) -> JpegNoise {
        JpegNoise { quality: (min, end) }
    }
}

impl Augmentor for JpegNoise {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (min, end) = self.quality;
        let quality = (u64::from(min) + rng.below(end.saturating_sub(min).into())).clamp(1, 100) as u8;
        photometric("JpegNoise", move |image| {
            let (h, w) = rgb_size(&image)?;
            let too_large = |_| Error::shape(format!("an image of {h}x{w} is too large for JPEG"));
            let (height, width) =
                (u16::try_from(h).map_err(too_large)?, u16::try_from(w).map_err(too_large)?);
            let is_f32 = image.dtype() == DType::F32;
            let bytes: Vec<u8> = match is_f32 {
                true => image.as_slice::<f32>()?.iter().map(|&x| u8::from_f32(x)).collect(),
                false => image.as_slice::<u8>()?.to_vec(),
            };
            let mut file = Vec::new();
            let encoded = Encoder::new(&mut file, quality).encode(&bytes, width, height, ColorType::Rgb);
            encoded.map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
            let decoded = decode(&file, Channels::Rgb)?;
            if is_f32 { to_f32(decoded) } else { Ok(decoded) }
        })
    }
}
