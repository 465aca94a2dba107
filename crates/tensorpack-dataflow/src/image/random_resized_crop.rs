//! Random resized crop, the standard augmentation for image classification.

use super::crop::CropTransform;
use super::pixels;
use super::resize_augmentors::ResizeTransform;
use super::{Augmentor, Channels, ImageFile, Interpolation, Rect, Transform, TransformList};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Crops a random region of random size and aspect ratio and resizes it to `size` by `size` pixels.
///
/// The region covers 8 % to 100 % of the image area with an aspect ratio of 3/4 to 4/3. After ten
/// unsuccessful draws the largest center square is used.
#[derive(Clone, Debug)]
#[doc(alias = "GoogleNetRandomCropAndResize")]
pub struct RandomResizedCrop {
    size: usize,
    area: (f64, f64),
    aspect_ratio: (f64, f64),
    interpolation: Interpolation,
}

impl RandomResizedCrop {
    /// Sets the output size in pixels.
    pub fn new(size: usize) -> RandomResizedCrop {
        RandomResizedCrop {
            size,
            area: (0.08, 1.0),
            aspect_ratio: (0.75, 1.333),
            interpolation: Interpolation::Linear,
        }
    }

    /// Sets the range of the area as a fraction of the image area.
    #[doc(alias = "scale")]
    #[doc(alias = "crop_area_fraction")]
    #[must_use]
    pub fn area(self, min: f64, max: f64) -> RandomResizedCrop {
        RandomResizedCrop { area: (min, max), ..self }
    }

    /// Sets the range of the aspect ratio.
    #[doc(alias = "aspect")]
    #[doc(alias = "ratio")]
    #[doc(alias = "aspect_ratio_range")]
    #[must_use]
    pub fn aspect_ratio(self, min: f64, max: f64) -> RandomResizedCrop {
        RandomResizedCrop { aspect_ratio: (min, max), ..self }
    }

    /// Sets the interpolation.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RandomResizedCrop {
        RandomResizedCrop { interpolation, ..self }
    }

    /// Returns the output size in pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Draws a region for an image of this size.
    #[doc(alias = "draw")]
    #[doc(alias = "get_params")]
    pub fn random_rect(&self, height: usize, width: usize, rng: &mut SampleRng) -> Rect {
        for _ in 0..10 {
            let area = rng.uniform_range(self.area.0, self.area.1) * (height * width) as f64;
            let aspect_ratio = rng.uniform_range(self.aspect_ratio.0, self.aspect_ratio.1);
            let sides = [(area * aspect_ratio).sqrt(), (area / aspect_ratio).sqrt()]
                .map(|side| (side + 0.5) as usize);
            let [w, h] = if rng.bernoulli(0.5) { [sides[1], sides[0]] } else { sides };
            if (1..=height).contains(&h) && (1..=width).contains(&w) {
                let x = rng.below((width - w + 1) as u64) as usize;
                let y = rng.below((height - h + 1) as u64) as usize;
                return Rect { x, y, width: w, height: h };
            }
        }
        let side = height.min(width);
        Rect { x: (width - side) / 2, y: (height - side) / 2, width: side, height: side }
    }

    /// Decodes only the drawn region of an image file into `out`, `[size, size, 3]` RGB.
    ///
    /// Equivalent to decoding, cropping and resizing, except for rounding when the region is
    /// decoded at a reduced scale; see [`ImageFile::decode_crop`].
    pub fn decode_into(&self, file: &[u8], rng: &mut SampleRng, out: &mut [u8]) -> Result<()> {
        if self.size == 0 {
            return Err(Error::argument("RandomResizedCrop: the size must be at least 1"));
        }
        let file = ImageFile::open(file)?;
        let (height, width) = file.size();
        let rect = self.random_rect(height, width, rng);
        file.decode_crop(rect, (self.size, self.size), Channels::Rgb, self.interpolation, out)
    }

    /// Like [`RandomResizedCrop::decode_into`], but returns a new image.
    pub fn decode(&self, file: &[u8], rng: &mut SampleRng) -> Result<HostTensor> {
        let mut out = vec![0; self.size * self.size * 3];
        self.decode_into(file, rng, &mut out)?;
        HostTensor::new([self.size, self.size, 3], out)
    }
}

impl Augmentor for RandomResizedCrop {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = pixels::image_size(image)?;
        let rect = self.random_rect(h, w, rng);
        let resized = ResizeTransform::transform(
            (rect.height, rect.width),
            (self.size, self.size),
            self.interpolation,
        )?;
        Ok(Box::new(TransformList(vec![Box::new(CropTransform(rect)), resized])))
    }
}
