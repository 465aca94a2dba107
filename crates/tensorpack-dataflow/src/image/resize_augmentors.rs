//! Augmentors that change the size of pictures.

use super::picture::size;
use super::{Augmentor, Interpolation, Transform, resize};
use crate::Draws;
use tensorpack_tensor::{Error, HostTensor, Result};

/// To this size.
#[derive(Clone, Debug)]
pub struct Resize {
    height: usize,
    width: usize,
    interpolation: Interpolation,
}

impl Resize {
    /// To this size, whatever the picture's shape.
    pub fn new(height: usize, width: usize) -> Resize {
        Resize { height, width, interpolation: Interpolation::Linear }
    }

    /// With this interpolation instead of [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Resize {
        Resize { interpolation, ..self }
    }
}

impl Augmentor for Resize {
    fn transform(&self, image: &HostTensor, _: &mut Draws) -> Result<Box<dyn Transform>> {
        let (h, w, _) = size(image)?;
        Resized::transform((h, w), (self.height, self.width), self.interpolation)
    }
}

/// To this length of the shorter side, with the shape kept.
#[derive(Clone, Debug)]
pub struct ResizeShortestEdge {
    length: usize,
    interpolation: Interpolation,
}

impl ResizeShortestEdge {
    /// To this length.
    pub fn new(length: usize) -> ResizeShortestEdge {
        ResizeShortestEdge { length, interpolation: Interpolation::Linear }
    }

    /// With this interpolation instead of [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> ResizeShortestEdge {
        ResizeShortestEdge { interpolation, ..self }
    }
}

impl Augmentor for ResizeShortestEdge {
    fn transform(&self, image: &HostTensor, _: &mut Draws) -> Result<Box<dyn Transform>> {
        let (h, w, _) = size(image)?;
        let scale = self.length as f64 / h.min(w) as f64;
        let side =
            |side: usize| if side == h.min(w) { self.length } else { round_half_up(side as f64 * scale) };
        Resized::transform((h, w), (side(h), side(w)), self.interpolation)
    }
}

/// To a random size.
#[derive(Clone, Debug)]
pub struct RandomResize {
    range: Range,
    least: (usize, usize),
    distortion: f64,
    interpolation: Interpolation,
}

#[derive(Clone, Debug)]
enum Range {
    /// Of the factors for height and width.
    Scale((f64, f64), (f64, f64)),
    /// Of the height and width in pixels.
    Pixels((f64, f64), (f64, f64)),
}

impl RandomResize {
    /// By factors between these for the height and for the width.
    pub fn scale(height: (f64, f64), width: (f64, f64)) -> RandomResize {
        RandomResize::new(Range::Scale(height, width))
    }

    /// To so many pixels of height and of width.
    pub fn pixels(height: (usize, usize), width: (usize, usize)) -> RandomResize {
        let range = |(least, most): (usize, usize)| (least as f64, most as f64);
        RandomResize::new(Range::Pixels(range(height), range(width)))
    }

    fn new(range: Range) -> RandomResize {
        RandomResize { range, least: (1, 1), distortion: 0.15, interpolation: Interpolation::Linear }
    }

    /// Never below this height and width.
    #[doc(alias = "minimum")]
    #[must_use]
    pub fn at_least(self, height: usize, width: usize) -> RandomResize {
        RandomResize { least: (height.max(1), width.max(1)), ..self }
    }

    /// Changing the ratio of width to height by no more than this fraction (0.15 unless said). 0 keeps the ratio, and
    /// the height follows the width.
    #[doc(alias = "aspect_ratio_thres")]
    #[must_use]
    pub fn distortion(self, most: f64) -> RandomResize {
        RandomResize { distortion: most, ..self }
    }

    /// With this interpolation instead of [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RandomResize {
        RandomResize { interpolation, ..self }
    }

    fn draw(&self, h: f64, w: f64, draws: &mut Draws) -> (usize, usize) {
        let (height, width) = match self.range {
            Range::Scale(y, x) => {
                let x = draws.between(x.0, x.1);
                (h * if self.distortion == 0.0 { x } else { draws.between(y.0, y.1) }, w * x)
            }
            Range::Pixels(y, x) => {
                let x = draws.between(x.0, x.1);
                (if self.distortion == 0.0 { x / w * h } else { draws.between(y.0, y.1) }, x)
            }
        };
        (round_half_up(height).max(self.least.0), round_half_up(width).max(self.least.1))
    }
}

impl Augmentor for RandomResize {
    fn transform(&self, image: &HostTensor, draws: &mut Draws) -> Result<Box<dyn Transform>> {
        let (h, w, _) = size(image)?;
        let ratio = w as f64 / h as f64;
        for _ in 0..50 {
            let (height, width) = self.draw(h as f64, w as f64, draws);
            let change = (width as f64 / height as f64 - ratio).abs() / ratio;
            if self.distortion == 0.0 || change < self.distortion + 1e-5 {
                return Resized::transform((h, w), (height, width), self.interpolation);
            }
        }
        Resized::transform((h, w), (h, w), self.interpolation)
    }
}

fn round_half_up(x: f64) -> usize {
    (x + 0.5) as usize
}

/// From one size to another.
#[derive(Debug)]
pub(super) struct Resized {
    from: (usize, usize),
    to: (usize, usize),
    interpolation: Interpolation,
}

impl Resized {
    /// The transform, if the new size is one.
    pub(super) fn transform(
        from: (usize, usize),
        to: (usize, usize),
        interpolation: Interpolation,
    ) -> Result<Box<dyn Transform>> {
        if to.0 == 0 || to.1 == 0 {
            return Err(Error::argument(format!(
                "a picture cannot be resized to {} by {} pixels",
                to.0, to.1
            )));
        }
        Ok(Box::new(Resized { from, to, interpolation }))
    }
}

impl Transform for Resized {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        resize(&image, self.to.0, self.to.1, self.interpolation)
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        let (down, across) = (self.to.0 as f64 / self.from.0 as f64, self.to.1 as f64 / self.from.1 as f64);
        for [x, y] in coords {
            (*x, *y) = (*x * across, *y * down);
        }
        Ok(())
    }
}
