//! Resizing augmentors.

use super::pixels::image_size;
use super::{Augmentor, Interpolation, Transform, resize};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Resizes to a fixed size.
#[derive(Clone, Debug)]
pub struct Resize {
    height: usize,
    width: usize,
    interpolation: Interpolation,
}

impl Resize {
    /// Resizes to this size, ignoring the aspect ratio.
    pub fn new(height: usize, width: usize) -> Resize {
        Resize { height, width, interpolation: Interpolation::Linear }
    }

    /// Sets the interpolation. Defaults to [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Resize {
        Resize { interpolation, ..self }
    }
}

impl Augmentor for Resize {
    fn transform(&self, image: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        ResizeTransform::transform((h, w), (self.height, self.width), self.interpolation)
    }
}

/// Resizes the shorter side to a fixed length and keeps the aspect ratio.
#[derive(Clone, Debug)]
pub struct ResizeShortestEdge {
    length: usize,
    interpolation: Interpolation,
}

impl ResizeShortestEdge {
    /// Sets the length of the shorter side.
    pub fn new(length: usize) -> ResizeShortestEdge {
        ResizeShortestEdge { length, interpolation: Interpolation::Linear }
    }

    /// Sets the interpolation. Defaults to [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> ResizeShortestEdge {
        ResizeShortestEdge { interpolation, ..self }
    }
}

impl Augmentor for ResizeShortestEdge {
    fn transform(&self, image: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let scale = self.length as f64 / h.min(w) as f64;
        let side =
            |side: usize| if side == h.min(w) { self.length } else { round_half_up(side as f64 * scale) };
        ResizeTransform::transform((h, w), (side(h), side(w)), self.interpolation)
    }
}

/// Resizes to a random size.
#[derive(Clone, Debug)]
pub struct RandomResize {
    range: SizeRange,
    min: (usize, usize),
    aspect_ratio_threshold: f64,
    interpolation: Interpolation,
}

#[derive(Clone, Debug)]
enum SizeRange {
    /// Ranges of the scale factors for height and width.
    Scale((f64, f64), (f64, f64)),
    /// Ranges of the height and width in pixels.
    Pixels((f64, f64), (f64, f64)),
}

impl RandomResize {
    /// Scales the height and width by factors in these ranges.
    pub fn scale(height: (f64, f64), width: (f64, f64)) -> RandomResize {
        RandomResize::new(SizeRange::Scale(height, width))
    }

    /// Resizes to a height and width in these ranges of pixels.
    pub fn pixels(height: (usize, usize), width: (usize, usize)) -> RandomResize {
        let range = |(min, max): (usize, usize)| (min as f64, max as f64);
        RandomResize::new(SizeRange::Pixels(range(height), range(width)))
    }

    fn new(range: SizeRange) -> RandomResize {
        RandomResize {
            range,
            min: (1, 1),
            aspect_ratio_threshold: 0.15,
            interpolation: Interpolation::Linear,
        }
    }

    /// Sets the minimum height and width.
    #[doc(alias = "at_least")]
    #[doc(alias = "minimum")]
    #[must_use]
    pub fn min_size(self, height: usize, width: usize) -> RandomResize {
        RandomResize { min: (height.max(1), width.max(1)), ..self }
    }

    /// Limits the relative change of the aspect ratio. Defaults to 0.15. 0 keeps the ratio, and the
    /// height follows the width.
    #[doc(alias = "distortion")]
    #[doc(alias = "aspect_ratio_thres")]
    #[must_use]
    pub fn aspect_ratio_threshold(self, max: f64) -> RandomResize {
        RandomResize { aspect_ratio_threshold: max, ..self }
    }

    /// Sets the interpolation. Defaults to [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RandomResize {
        RandomResize { interpolation, ..self }
    }

    fn random_size(&self, h: f64, w: f64, rng: &mut SampleRng) -> (usize, usize) {
        let (height, width) = match self.range {
            SizeRange::Scale(y, x) => {
                let x = rng.uniform_range(x.0, x.1);
                (h * if self.aspect_ratio_threshold == 0.0 { x } else { rng.uniform_range(y.0, y.1) }, w * x)
            }
            SizeRange::Pixels(y, x) => {
                let x = rng.uniform_range(x.0, x.1);
                (if self.aspect_ratio_threshold == 0.0 { x / w * h } else { rng.uniform_range(y.0, y.1) }, x)
            }
        };
        (round_half_up(height).max(self.min.0), round_half_up(width).max(self.min.1))
    }
}

impl Augmentor for RandomResize {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let ratio = w as f64 / h as f64;
        for _ in 0..50 {
            let (height, width) = self.random_size(h as f64, w as f64, rng);
            let change = (width as f64 / height as f64 - ratio).abs() / ratio;
            if self.aspect_ratio_threshold == 0.0 || change < self.aspect_ratio_threshold + 1e-5 {
                return ResizeTransform::transform((h, w), (height, width), self.interpolation);
            }
        }
        ResizeTransform::transform((h, w), (h, w), self.interpolation)
    }
}

fn round_half_up(x: f64) -> usize {
    (x + 0.5) as usize
}

/// Resizes from one size to another.
#[derive(Debug)]
pub(super) struct ResizeTransform {
    from: (usize, usize),
    to: (usize, usize),
    interpolation: Interpolation,
}

impl ResizeTransform {
    /// Creates the transform, or returns an error if the new size is empty.
    pub(super) fn transform(
        from: (usize, usize),
        to: (usize, usize),
        interpolation: Interpolation,
    ) -> Result<Box<dyn Transform>> {
        if to.0 == 0 || to.1 == 0 {
            return Err(Error::argument(format!("cannot resize an image to {}x{} pixels", to.0, to.1)));
        }
        Ok(Box::new(ResizeTransform { from, to, interpolation }))
    }
}

impl Transform for ResizeTransform {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        resize(&image, self.to.0, self.to.1, self.interpolation)
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        let (scale_y, scale_x) =
            (self.to.0 as f64 / self.from.0 as f64, self.to.1 as f64 / self.from.1 as f64);
        for [x, y] in coords {
            (*x, *y) = (*x * scale_x, *y * scale_y);
        }
        Ok(())
    }
}
