//! Shift, rotation, scale and shear augmentors.

use super::crop::CropTransform;
use super::pixels::image_size;
use super::warp_affine::WarpAffine;
use super::{Augmentor, Border, Interpolation, Rect, Transform, TransformList};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Shifts the image by whole pixels.
#[derive(Clone, Debug)]
pub struct Shift {
    vertical: f64,
    horizontal: f64,
    border: Border,
}

impl Shift {
    /// Shifts by at most these fractions of the height and width, in either direction.
    pub fn new(vertical: f64, horizontal: f64) -> Shift {
        Shift { vertical, horizontal, border: Border::Replicate }
    }

    /// Sets how pixels beyond the edges are filled.
    #[must_use]
    pub fn border(self, border: Border) -> Shift {
        Shift { border, ..self }
    }
}

impl Augmentor for Shift {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        if self.vertical >= 1.0 || self.horizontal >= 1.0 {
            return Err(Error::argument("Shift: fractions must be below 1"));
        }
        let mut by = |fraction: f64, side: usize| {
            let max = fraction * side as f64;
            rng.uniform_range(-max, max).round()
        };
        let (dx, dy) = (by(self.horizontal, w), by(self.vertical, h));
        let matrix = [[1.0, 0.0, dx], [0.0, 1.0, dy]];
        Ok(Box::new(WarpAffine { matrix, interpolation: Interpolation::Nearest, border: self.border }))
    }
}

/// Rotates the image about a random point and keeps its size.
#[derive(Clone, Debug)]
pub struct Rotation {
    degrees: (f64, f64),
    step: Option<f64>,
    center: (f64, f64),
    interpolation: Interpolation,
    border: Border,
}

impl Rotation {
    /// Rotates by at most `degrees` in either direction.
    pub fn new(degrees: f64) -> Rotation {
        Rotation::range(-degrees, degrees)
    }

    /// Rotates by an angle in this range, in degrees counterclockwise.
    #[doc(alias = "between")]
    pub fn range(min: f64, max: f64) -> Rotation {
        Rotation {
            degrees: (min, max),
            step: None,
            center: (0.0, 1.0),
            interpolation: Interpolation::Linear,
            border: Border::Replicate,
        }
    }

    /// Restricts the angle to multiples of `degrees`.
    #[doc(alias = "step_deg")]
    #[must_use]
    pub fn step(self, degrees: f64) -> Rotation {
        Rotation { step: Some(degrees), ..self }
    }

    /// Sets the range of the center, as fractions of the height and width.
    #[doc(alias = "center_range")]
    #[must_use]
    pub fn center(self, min: f64, max: f64) -> Rotation {
        Rotation { center: (min, max), ..self }
    }

    /// Sets the interpolation: [`Interpolation::Linear`] or [`Interpolation::Nearest`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Rotation {
        Rotation { interpolation, ..self }
    }

    /// Sets how pixels beyond the edges are filled.
    #[must_use]
    pub fn border(self, border: Border) -> Rotation {
        Rotation { border, ..self }
    }

    fn random_angle(&self, rng: &mut SampleRng) -> f64 {
        let degrees = rng.uniform_range(self.degrees.0, self.degrees.1);
        self.step.map_or(degrees, |step| (degrees / step).floor() * step)
    }

    fn warp(&self, center: (f64, f64), degrees: f64) -> WarpAffine {
        let matrix = WarpAffine::rotation((center.0 - 0.5, center.1 - 0.5), degrees, 1.0);
        WarpAffine { matrix, interpolation: self.interpolation, border: self.border }
    }
}

impl Augmentor for Rotation {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let x = rng.uniform_range(self.center.0, self.center.1) * w as f64;
        let y = rng.uniform_range(self.center.0, self.center.1) * h as f64;
        let degrees = self.random_angle(rng);
        Ok(Box::new(self.warp((x, y), degrees)))
    }
}

/// Rotates the image about its center and crops the largest rectangle without border pixels.
#[derive(Clone, Debug)]
pub struct RotationAndCropValid(Rotation);

impl RotationAndCropValid {
    /// Rotates by at most `degrees` in either direction.
    pub fn new(degrees: f64) -> RotationAndCropValid {
        RotationAndCropValid(Rotation::new(degrees))
    }

    /// Restricts the angle to multiples of `degrees`.
    #[must_use]
    pub fn step(self, degrees: f64) -> RotationAndCropValid {
        RotationAndCropValid(self.0.step(degrees))
    }

    /// Sets the interpolation: [`Interpolation::Linear`] or [`Interpolation::Nearest`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RotationAndCropValid {
        RotationAndCropValid(self.0.interpolation(interpolation))
    }
}

impl Augmentor for RotationAndCropValid {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let degrees = self.0.random_angle(rng);
        let center = (w as f64 * 0.5, h as f64 * 0.5);
        let warp = self.0.warp(center, degrees);
        let (height, width) = largest_rotated_rect(h as f64, w as f64, degrees);
        let (height, width) = (height.clamp(1, h), width.clamp(1, w));
        let corner = |center: f64, side: usize| (center - side as f64 * 0.5) as usize;
        let rect = Rect { x: corner(center.0, width), y: corner(center.1, height), width, height };
        Ok(Box::new(TransformList(vec![Box::new(warp), Box::new(CropTransform(rect))])))
    }
}

/// Returns the height and width of the largest axis-aligned rectangle inside a rotated one.
fn largest_rotated_rect(h: f64, w: f64, degrees: f64) -> (usize, usize) {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (sin, cos) = (sin.abs(), cos.abs());
    let (long, short) = (h.max(w), h.min(w));
    let (height, width) = if short <= 2.0 * sin * cos * long {
        // Two corners touch the longer sides; the other two lie on the line between their
        // midpoints.
        let half = 0.5 * short;
        if w >= h { (half / cos, half / sin) } else { (half / sin, half / cos) }
    } else {
        // All four corners touch a side.
        let both = cos * cos - sin * sin;
        ((h * cos - w * sin) / both, (w * cos - h * sin) / both)
    };
    (height.round_ties_even() as usize, width.round_ties_even() as usize)
}

/// Scales, shifts, rotates and shears the image about its center.
#[derive(Clone, Debug)]
pub struct Affine {
    scale: (f64, f64),
    shift: (f64, f64),
    degrees: f64,
    shear: f64,
    interpolation: Interpolation,
    border: Border,
}

impl Affine {
    /// Creates an identity transform to configure.
    pub fn new() -> Affine {
        Affine {
            scale: (1.0, 1.0),
            shift: (0.0, 0.0),
            degrees: 0.0,
            shear: 0.0,
            interpolation: Interpolation::Linear,
            border: Border::Replicate,
        }
    }

    /// Scales by a factor in this range.
    #[must_use]
    pub fn scale(self, min: f64, max: f64) -> Affine {
        Affine { scale: (min, max), ..self }
    }

    /// Shifts by at most these fractions of the height and width, in whole pixels and either
    /// direction.
    #[doc(alias = "translate_frac")]
    #[must_use]
    pub fn shift(self, vertical: f64, horizontal: f64) -> Affine {
        Affine { shift: (vertical, horizontal), ..self }
    }

    /// Rotates by at most `degrees` in either direction.
    #[doc(alias = "rotate_max_deg")]
    #[must_use]
    pub fn rotation(self, degrees: f64) -> Affine {
        Affine { degrees, ..self }
    }

    /// Shears columns by at most `degrees` in either direction.
    #[must_use]
    pub fn shear(self, degrees: f64) -> Affine {
        Affine { shear: degrees, ..self }
    }

    /// Sets the interpolation: [`Interpolation::Linear`] or [`Interpolation::Nearest`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Affine {
        Affine { interpolation, ..self }
    }

    /// Sets how pixels beyond the edges are filled.
    #[must_use]
    pub fn border(self, border: Border) -> Affine {
        Affine { border, ..self }
    }
}

impl Default for Affine {
    fn default() -> Affine {
        Affine::new()
    }
}

impl Augmentor for Affine {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        let scale = rng.uniform_range(self.scale.0, self.scale.1);
        let mut within = |max: f64| rng.uniform_range(-max, max);
        let shift = (within(self.shift.1 * w as f64).round(), within(self.shift.0 * h as f64).round());
        let (shear, degrees) = (within(self.shear), within(self.degrees));
        let center = (w as f64 * 0.5 - 0.5, h as f64 * 0.5 - 0.5);
        let matrix = affine(center, scale, degrees, shear, shift);
        Ok(Box::new(WarpAffine { matrix, interpolation: self.interpolation, border: self.border }))
    }
}

/// Builds a rotation about `center` whose second column is sheared, followed by a shift.
fn affine(center: (f64, f64), scale: f64, degrees: f64, shear: f64, shift: (f64, f64)) -> [[f64; 3]; 2] {
    let (sin, cos) = shear.to_radians().sin_cos();
    let mut matrix = WarpAffine::rotation(center, degrees, scale);
    for ([a, b, c], (own, shift)) in matrix.iter_mut().zip([(center.0, shift.0), (center.1, shift.1)]) {
        *b = *b * cos + *a * sin;
        // The center is a fixed point, apart from the shift.
        *c = own - *a * center.0 - *b * center.1 + shift;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    // Values of the original, from tests/golden/make_golden.py.

    #[test]
    fn affine_matrix_matches_the_original() {
        let actual = affine((4.0, 3.0), 1.1, 20.0, 12.0, (2.0, -3.0));
        let expected = [[1.0337, 0.5829, 0.1166], [-0.3762, 0.9329, -1.2937]];
        for (actual, expected) in actual.as_flattened().iter().zip(expected.as_flattened()) {
            assert!((actual - expected).abs() < 1e-4, "{actual}, not {expected}");
        }
    }

    #[test]
    fn largest_rotated_rect_matches_the_original() {
        let cases =
            [(100, 60, 10, 94, 44), (60, 100, 30, 35, 60), (100, 100, 45, 71, 71), (500, 375, -77, 281, 448)];
        for (w, h, degrees, width, height) in cases {
            let actual = largest_rotated_rect(f64::from(h), f64::from(w), f64::from(degrees));
            assert_eq!(actual, (height, width), "{w}x{h} rotated by {degrees} degrees");
        }
    }
}
