//! Flips and transposition.

use super::pixels::{dispatch_pixel_type, image_size, remap};
use super::{Augmentor, Identity, Transform};
use crate::SampleRng;
use tensorpack_tensor::{HostTensor, Result};

/// Flips the image with a probability that defaults to 0.5.
#[derive(Clone, Debug)]
pub struct Flip {
    is_horizontal: bool,
    probability: f64,
}

impl Flip {
    /// Flips left to right.
    pub fn horizontal() -> Flip {
        Flip { is_horizontal: true, probability: 0.5 }
    }

    /// Flips top to bottom.
    pub fn vertical() -> Flip {
        Flip { is_horizontal: false, probability: 0.5 }
    }

    /// Sets the probability.
    #[must_use]
    pub fn probability(self, probability: f64) -> Flip {
        Flip { probability, ..self }
    }
}

impl Augmentor for Flip {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        Ok(match (rng.bernoulli(self.probability), self.is_horizontal) {
            (false, _) => Box::new(Identity),
            (true, true) => Box::new(FlipTransform::Horizontal { width: w }),
            (true, false) => Box::new(FlipTransform::Vertical { height: h }),
        })
    }
}

#[derive(Debug)]
enum FlipTransform {
    Horizontal { width: usize },
    Vertical { height: usize },
}

impl Transform for FlipTransform {
    fn apply_image(&self, mut image: HostTensor) -> Result<HostTensor> {
        let (h, w, c) = image_size(&image)?;
        dispatch_pixel_type!(image, T => {
            let values = image.as_mut_slice::<T>()?;
            match self {
                FlipTransform::Horizontal { .. } if c == 3 => {
                    for row in values.chunks_exact_mut(w * 3) {
                        row.as_chunks_mut::<3>().0.reverse();
                    }
                }
                FlipTransform::Horizontal { .. } => {
                    for row in values.chunks_exact_mut(w * c) {
                        // Reverse all values, then restore the channel order of each pixel.
                        row.reverse();
                        row.chunks_exact_mut(c).for_each(<[T]>::reverse);
                    }
                }
                FlipTransform::Vertical { .. } => {
                    let (top, rest) = values.split_at_mut(h / 2 * w * c);
                    let bottom = rest.rchunks_exact_mut(w * c);
                    top.chunks_exact_mut(w * c).zip(bottom).for_each(|(a, b)| a.swap_with_slice(b));
                }
            }
        });
        Ok(image)
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        for [x, y] in coords {
            match *self {
                FlipTransform::Horizontal { width } => *x = width as f64 - *x,
                FlipTransform::Vertical { height } => *y = height as f64 - *y,
            }
        }
        Ok(())
    }
}

/// Transposes the image with some probability.
#[derive(Clone, Debug)]
pub struct Transpose {
    probability: f64,
}

impl Transpose {
    /// Sets the probability.
    pub fn new(probability: f64) -> Transpose {
        Transpose { probability }
    }
}

impl Augmentor for Transpose {
    fn transform(&self, _: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        Ok(if rng.bernoulli(self.probability) { Box::new(TransposeTransform) } else { Box::new(Identity) })
    }
}

#[derive(Debug)]
struct TransposeTransform;

impl Transform for TransposeTransform {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        let (h, w, _) = image_size(&image)?;
        remap(&image, w, h, |y, x| (x, y))
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        coords.iter_mut().for_each(|[x, y]| std::mem::swap(x, y));
        Ok(())
    }
}
