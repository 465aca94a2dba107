//! Pasting onto a larger canvas.

use super::pixels::{PixelValue, dispatch_pixel_type, image_size, shape_like};
use super::{Augmentor, Transform};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Pastes the image onto a larger canvas, at its center or at a random position.
#[derive(Clone, Debug)]
#[doc(alias = "CenterPaste")]
#[doc(alias = "RandomPaste")]
pub struct Paste {
    height: usize,
    width: usize,
    is_random: bool,
    fill: f32,
}

impl Paste {
    /// Pastes at the center of a canvas of this size. The fill value defaults to 0.
    pub fn center(height: usize, width: usize) -> Paste {
        Paste { height, width, is_random: false, fill: 0.0 }
    }

    /// Pastes at a random position on a canvas of this size. The fill value defaults to 0.
    pub fn random(height: usize, width: usize) -> Paste {
        Paste { height, width, is_random: true, fill: 0.0 }
    }

    /// Sets the fill value of the canvas.
    #[doc(alias = "ConstantBackgroundFiller")]
    #[must_use]
    pub fn fill(self, fill: f32) -> Paste {
        Paste { fill, ..self }
    }
}

impl Augmentor for Paste {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let (Some(margin_y), Some(margin_x)) = (self.height.checked_sub(h), self.width.checked_sub(w)) else {
            let why = format!(
                "Paste: an image of {h}x{w} is larger than the canvas of {}x{}",
                self.height, self.width
            );
            return Err(Error::shape(why));
        };
        let mut offset =
            |free: usize| if self.is_random { rng.below(free as u64 + 1) as usize } else { free / 2 };
        let (y, x) = (offset(margin_y), offset(margin_x));
        Ok(Box::new(PasteTransform { height: self.height, width: self.width, y, x, fill: self.fill }))
    }
}

#[derive(Debug)]
struct PasteTransform {
    height: usize,
    width: usize,
    y: usize,
    x: usize,
    fill: f32,
}

impl Transform for PasteTransform {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        let (h, w, c) = image_size(&image)?;
        if h + self.y > self.height || w + self.x > self.width {
            return Err(Error::shape(format!(
                "Paste: an image of {h}x{w} does not fit at its position on the canvas"
            )));
        }
        dispatch_pixel_type!(image, T => {
            let mut canvas = vec![T::from_f32(self.fill); self.height * self.width * c];
            let rows = canvas.chunks_exact_mut(self.width * c).skip(self.y);
            for (to, from) in rows.zip(image.as_slice::<T>()?.chunks_exact(w * c)) {
                to[self.x * c..(self.x + w) * c].copy_from_slice(from);
            }
            HostTensor::new(shape_like(&image, self.height, self.width, c), canvas)
        })
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        for [x, y] in coords {
            (*x, *y) = (*x + self.x as f64, *y + self.y as f64);
        }
        Ok(())
    }
}
