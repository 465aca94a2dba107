//! Crops and cutouts.

use super::pixels::{dispatch_pixel_type, image_size, shape_like};
use super::{Augmentor, Rect, Transform};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Crops a rectangle of fixed size at a random position.
#[derive(Clone, Debug)]
pub struct RandomCrop {
    height: usize,
    width: usize,
}

impl RandomCrop {
    /// Sets the size of the crop.
    pub fn new(height: usize, width: usize) -> RandomCrop {
        RandomCrop { height, width }
    }
}

impl Augmentor for RandomCrop {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (margin_y, margin_x) =
            margins(image, self.height, self.width).map_err(|e| e.within("RandomCrop"))?;
        let (y, x) = (rng.below(margin_y as u64 + 1) as usize, rng.below(margin_x as u64 + 1) as usize);
        Ok(Box::new(CropTransform(Rect { x, y, width: self.width, height: self.height })))
    }
}

/// Crops a rectangle of fixed size from the center.
#[derive(Clone, Debug)]
pub struct CenterCrop {
    height: usize,
    width: usize,
}

impl CenterCrop {
    /// Sets the size of the crop.
    pub fn new(height: usize, width: usize) -> CenterCrop {
        CenterCrop { height, width }
    }
}

impl Augmentor for CenterCrop {
    fn transform(&self, image: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (margin_y, margin_x) =
            margins(image, self.height, self.width).map_err(|e| e.within("CenterCrop"))?;
        Ok(Box::new(CropTransform(Rect {
            x: margin_x / 2,
            y: margin_y / 2,
            width: self.width,
            height: self.height,
        })))
    }
}

/// Crops a rectangle of random size at a random position.
#[derive(Clone, Debug)]
pub struct RandomCropRandomShape {
    min: (usize, usize),
    max: Option<(usize, usize)>,
}

impl RandomCropRandomShape {
    /// Sets the minimum size. The maximum defaults to the size of the image.
    pub fn new(height: usize, width: usize) -> RandomCropRandomShape {
        RandomCropRandomShape { min: (height, width), max: None }
    }

    /// Sets the maximum size.
    #[doc(alias = "at_most")]
    #[must_use]
    pub fn max_size(self, height: usize, width: usize) -> RandomCropRandomShape {
        RandomCropRandomShape { max: Some((height, width)), ..self }
    }
}

impl Augmentor for RandomCropRandomShape {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let max = self.max.unwrap_or((h, w));
        let mut side =
            |min: usize, max: usize| min + rng.below((max.saturating_sub(min) + 1) as u64) as usize;
        let (height, width) = (side(self.min.0, max.0), side(self.min.1, max.1));
        RandomCrop::new(height, width).transform(image, rng).map_err(|e| e.within("RandomCropRandomShape"))
    }
}

/// Returns how many rows and columns the image has beyond this size.
fn margins(image: &HostTensor, height: usize, width: usize) -> Result<(usize, usize)> {
    let (h, w, _) = image_size(image)?;
    match (h.checked_sub(height), w.checked_sub(width)) {
        (Some(y), Some(x)) if height > 0 && width > 0 => Ok((y, x)),
        _ => Err(Error::shape(format!("cannot crop {height}x{width} from an image of {h}x{w}"))),
    }
}

/// Crops a rectangle.
#[derive(Debug)]
pub(super) struct CropTransform(pub(super) Rect);

impl Transform for CropTransform {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        let Rect { x, y, width, height } = self.0;
        let (h, w, c) = image_size(&image)?;
        if !self.0.is_within(h, w) {
            return Err(Error::shape(format!("Crop: {:?} is outside an image of {h}x{w}", self.0)));
        }
        dispatch_pixel_type!(image, T => {
            let mut out = Vec::with_capacity(height * width * c);
            for row in image.as_slice::<T>()?.chunks_exact(w * c).skip(y).take(height) {
                out.extend_from_slice(&row[x * c..(x + width) * c]);
            }
            HostTensor::new(shape_like(&image, height, width, c), out)
        })
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        for [x, y] in coords {
            (*x, *y) = (*x - self.0.x as f64, *y - self.0.y as f64);
        }
        Ok(())
    }
}

/// Fills a rectangle at a random position.
#[derive(Clone, Debug)]
pub struct RandomCutout {
    heights: (usize, usize),
    widths: (usize, usize),
    fill: f32,
}

impl RandomCutout {
    /// Fills a rectangle of this size with 0.
    pub fn new(height: usize, width: usize) -> RandomCutout {
        RandomCutout::range((height, height), (width, width))
    }

    /// Fills a rectangle with a height and width in these inclusive ranges.
    #[doc(alias = "between")]
    pub fn range(heights: (usize, usize), widths: (usize, usize)) -> RandomCutout {
        RandomCutout { heights, widths, fill: 0.0 }
    }

    /// Sets the fill value.
    #[must_use]
    pub fn fill(self, fill: f32) -> RandomCutout {
        RandomCutout { fill, ..self }
    }
}

impl Augmentor for RandomCutout {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let mut side =
            |(min, max): (usize, usize)| min + rng.below((max.saturating_sub(min) + 1) as u64) as usize;
        let (height, width) = (side(self.heights), side(self.widths));
        let (margin_y, margin_x) = margins(image, height, width).map_err(|e| e.within("RandomCutout"))?;
        let (y, x) = (rng.below(margin_y as u64 + 1) as usize, rng.below(margin_x as u64 + 1) as usize);
        let fill = self.fill;
        super::photometric("RandomCutout", move |mut image| {
            let (_, w, c) = image_size(&image)?;
            dispatch_pixel_type!(image, T => {
                use super::pixels::PixelValue;
                for row in image.as_mut_slice::<T>()?.chunks_exact_mut(w * c).skip(y).take(height) {
                    row[x * c..(x + width) * c].fill(T::from_f32(fill));
                }
            });
            Ok(image)
        })
    }
}
