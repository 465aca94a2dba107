//! The crop that image classifiers are trained on.

use super::crop::CropTransform;
use super::pixels;
use super::resize_augmentors::ResizeTransform;
use super::{Augmentor, Channels, ImageFile, Interpolation, Rect, Transform, TransformList};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A random part of a picture, of random size and shape, resized to `size` by `size` pixels.
///
/// The part covers 8% to 100% of the picture's area and is up to 4/3 longer than wide, or wider than long. If ten
/// draws find none that fits, it is the largest square in the middle.
#[derive(Clone, Debug)]
#[doc(alias = "GoogleNetRandomCropAndResize")]
pub struct RandomResizedCrop {
    size: usize,
    area: (f64, f64),
    aspect_ratio: (f64, f64),
    interpolation: Interpolation,
}

impl RandomResizedCrop {
    /// To this many pixels, across and down.
    pub fn new(size: usize) -> RandomResizedCrop {
        RandomResizedCrop {
            size,
            area: (0.08, 1.0),
            aspect_ratio: (0.75, 1.333),
            interpolation: Interpolation::Linear,
        }
    }

    /// With an area between these fractions of the picture's.
    #[doc(alias = "scale")]
    #[doc(alias = "crop_area_fraction")]
    #[must_use]
    pub fn area(self, min: f64, max: f64) -> RandomResizedCrop {
        RandomResizedCrop { area: (min, max), ..self }
    }

    /// With a ratio of the sides between these.
    #[doc(alias = "aspect")]
    #[doc(alias = "ratio")]
    #[doc(alias = "aspect_ratio_range")]
    #[must_use]
    pub fn aspect_ratio(self, min: f64, max: f64) -> RandomResizedCrop {
        RandomResizedCrop { aspect_ratio: (min, max), ..self }
    }

    /// Resized like this.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RandomResizedCrop {
        RandomResizedCrop { interpolation, ..self }
    }

    /// The size of the result, across and down.
    pub fn size(&self) -> usize {
        self.size
    }

    /// SampleRng the part of a picture of this size.
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

    /// Decodes the part of a file's picture, and nothing else of it, into `out`: `[size, size, 3]` in RGB.
    ///
    /// The same as decoding, cropping and resizing, but for the rounding of what is decoded at a fraction of its size;
    /// see [`ImageFile::decode_crop`].
    pub fn decode_into(&self, file: &[u8], rng: &mut SampleRng, out: &mut [u8]) -> Result<()> {
        if self.size == 0 {
            return Err(Error::argument("RandomResizedCrop: a size of 0"));
        }
        let file = ImageFile::open(file)?;
        let (height, width) = file.size();
        let rect = self.random_rect(height, width, rng);
        file.decode_crop(rect, (self.size, self.size), Channels::Rgb, self.interpolation, out)
    }

    /// As [`RandomResizedCrop::decode_into`], to a picture of its own.
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
