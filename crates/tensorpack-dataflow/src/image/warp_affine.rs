//! Affine warps.

use super::pixels::{PixelValue, dispatch_pixel_type, image_size, shape_like};
use super::{Interpolation, Transform};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How pixels beyond the edges of an image are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Border {
    /// With the nearest pixel.
    #[default]
    Replicate,
    /// With a constant value.
    Constant(f32),
}

/// Maps the point (x, y) to `matrix` times (x, y, 1). Pixel centers have integer coordinates.
#[derive(Clone, Debug)]
pub(super) struct WarpAffine {
    pub(super) matrix: [[f64; 3]; 2],
    pub(super) interpolation: Interpolation,
    pub(super) border: Border,
}

impl WarpAffine {
    /// Returns the matrix of a counterclockwise rotation about (x, y) followed by scaling.
    pub(super) fn rotation((x, y): (f64, f64), degrees: f64, scale: f64) -> [[f64; 3]; 2] {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let (a, b) = (scale * cos, scale * sin);
        [[a, b, (1.0 - a) * x - b * y], [-b, a, b * x + (1.0 - a) * y]]
    }

    /// Returns the inverse matrix, if it exists.
    fn inverse_matrix(&self) -> Option<[[f64; 3]; 2]> {
        let [[a, b, x], [c, d, y]] = self.matrix;
        let determinant = a * d - b * c;
        if determinant == 0.0 || !determinant.is_finite() {
            return None;
        }
        let [a, b, c, d] = [d, -b, -c, a].map(|m| m / determinant);
        Some([[a, b, -a * x - b * y], [c, d, -c * x - d * y]])
    }
}

impl Transform for WarpAffine {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        let (h, w, c) = image_size(&image)?;
        let is_linear = match self.interpolation {
            Interpolation::Nearest => false,
            Interpolation::Linear => true,
            other => {
                let why =
                    format!("affine transforms support Nearest and Linear interpolation, not {other:?}");
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        };
        let inverse =
            self.inverse_matrix().ok_or_else(|| Error::argument("the affine matrix is singular"))?;
        dispatch_pixel_type!(image, T => {
            let sampler = Sampler { values: image.as_slice::<T>()?, h, w, c, border: self.border };
            let mut out = vec![T::default(); h * w * c];
            for (i, pixel) in out.chunks_exact_mut(c).enumerate() {
                let (x, y) = ((i % w) as f64, (i / w) as f64);
                let [x, y] = inverse.map(|[a, b, c]| a * x + b * y + c);
                match is_linear {
                    true => sampler.linear(x, y, pixel),
                    false => sampler.nearest(x, y, pixel),
                }
            }
            HostTensor::new(shape_like(&image, h, w, c), out)
        })
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        for point in coords {
            // Coordinates are relative to the corner of the first pixel, the matrix to its center.
            let [x, y] = point.map(|p| p - 0.5);
            *point = self.matrix.map(|[a, b, c]| a * x + b * y + c + 0.5);
        }
        Ok(())
    }
}

/// An image that can be sampled anywhere.
struct Sampler<'a, T> {
    values: &'a [T],
    h: usize,
    w: usize,
    c: usize,
    border: Border,
}

impl<T: PixelValue> Sampler<'_, T> {
    /// Returns one channel of the pixel at this row and column, which may be outside the image.
    fn at(&self, y: f64, x: f64, channel: usize) -> f32 {
        let (last_y, last_x) = ((self.h - 1) as f64, (self.w - 1) as f64);
        match self.border {
            Border::Constant(value) if y < 0.0 || x < 0.0 || y > last_y || x > last_x => value,
            _ => {
                let (y, x) = (y.clamp(0.0, last_y) as usize, x.clamp(0.0, last_x) as usize);
                self.values[(y * self.w + x) * self.c + channel].to_f32()
            }
        }
    }

    fn linear(&self, x: f64, y: f64, out: &mut [T]) {
        let (left, top) = (x.floor(), y.floor());
        let (dx, dy) = ((x - left) as f32, (y - top) as f32);
        for (channel, out) in out.iter_mut().enumerate() {
            let row = |y: f64| self.at(y, left, channel) * (1.0 - dx) + self.at(y, left + 1.0, channel) * dx;
            *out = T::from_f32(row(top) * (1.0 - dy) + row(top + 1.0) * dy);
        }
    }

    fn nearest(&self, x: f64, y: f64, out: &mut [T]) {
        let (x, y) = ((x + 0.5).floor(), (y + 0.5).floor());
        out.iter_mut().enumerate().for_each(|(channel, out)| *out = T::from_f32(self.at(y, x, channel)));
    }
}
