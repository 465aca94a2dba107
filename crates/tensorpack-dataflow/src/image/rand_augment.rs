//! RandAugment (Cubuk et al., 2019).

use super::pixels::image_size;
use super::warp_affine::WarpAffine;
use super::{Augmentor, Border, Interpolation, Transform, TransformList, enhance, photometric};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Applies operations that are drawn from a list, all with the same magnitude: RandAugment. Operations
/// and magnitudes are those of torchvision; values are computed as Pillow does.
///
/// Images are u8, RGB or gray.
///
/// ```
/// use tensorpack_dataflow::image::{Augmentor, RandAugment};
/// use tensorpack_dataflow::{Seed, tensor::HostTensor};
///
/// let image = HostTensor::new([8, 8, 3], vec![100u8; 192])?;
/// let (augmented, _) = RandAugment::new(2, 9).augment(image, &mut Seed::new(0).rng(0, 0))?;
/// assert_eq!(augmented.sizes(), [8, 8, 3]);
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandAugment {
    count: usize,
    magnitude: usize,
    bins: usize,
    ops: Vec<RandAugmentOp>,
    interpolation: Interpolation,
    fill: f32,
}

impl RandAugment {
    /// Applies `count` operations, each with this magnitude from 0 to 30. The paper's setting for
    /// ImageNet, and torchvision's default, is 2 and 9.
    pub fn new(count: usize, magnitude: usize) -> RandAugment {
        RandAugment {
            count,
            magnitude,
            bins: 31,
            ops: RandAugmentOp::ALL.to_vec(),
            interpolation: Interpolation::Nearest,
            fill: 0.0,
        }
    }

    /// Sets the number of magnitudes, from the weakest to the strongest (default: 31).
    #[must_use]
    #[doc(alias = "num_magnitude_bins")]
    pub fn bins(self, bins: usize) -> RandAugment {
        RandAugment { bins, ..self }
    }

    /// Sets the operations to draw from (default: all).
    #[must_use]
    pub fn ops(self, ops: impl IntoIterator<Item = RandAugmentOp>) -> RandAugment {
        RandAugment { ops: ops.into_iter().collect(), ..self }
    }

    /// Sets the interpolation of moved pixels: [`Interpolation::Nearest`] (default) or
    /// [`Interpolation::Linear`].
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> RandAugment {
        RandAugment { interpolation, ..self }
    }

    /// Sets the value of pixels that come from outside of the image (default: 0).
    #[must_use]
    pub fn fill(self, fill: f32) -> RandAugment {
        RandAugment { fill, ..self }
    }

    /// Returns an error if a setting makes no sense.
    fn check(&self) -> Result<()> {
        let why = if self.ops.is_empty() {
            "RandAugment: there is no operation to draw from".to_string()
        } else if self.bins < 2 || self.magnitude >= self.bins {
            let (magnitude, bins) = (self.magnitude, self.bins);
            format!("RandAugment: the magnitude {magnitude} is not one of {bins} from 0 on")
        } else {
            return Ok(());
        };
        Err(Error::argument(why))
    }
}

impl Augmentor for RandAugment {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        self.check()?;
        let (h, w, _) = image_size(image)?;
        let strength = self.magnitude as f64 / (self.bins - 1) as f64;
        let drawn = (0..self.count).map(|_| {
            let op = self.ops[rng.below(self.ops.len() as u64) as usize];
            let sign = if op.has_sign() && rng.bernoulli(0.5) { -1.0 } else { 1.0 };
            op.geometry(sign * op.magnitude(strength, h, w), h, w, self)
        });
        Ok(Box::new(TransformList(drawn.collect::<Result<_>>()?)))
    }
}

/// An operation of [`RandAugment`]. Strengths go from 0 (the first magnitude) to 1 (the last one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RandAugmentOp {
    /// Changes nothing.
    Identity,
    /// Shears rows by up to 0.3 pixels per pixel.
    ShearX,
    /// Shears columns by up to 0.3 pixels per pixel.
    ShearY,
    /// Shifts by up to 150/331 of the width, in whole pixels.
    TranslateX,
    /// Shifts by up to 150/331 of the height, in whole pixels.
    TranslateY,
    /// Rotates by up to 30 degrees about the center.
    Rotate,
    /// Scales values by 0.1 to 1.9.
    Brightness,
    /// Blends with the black and white image, by 0.1 to 1.9.
    Color,
    /// Blends with the mean gray, by 0.1 to 1.9.
    Contrast,
    /// Blends with a blurred image, by 0.1 to 1.9.
    Sharpness,
    /// Keeps 8 to 4 bits of each value.
    Posterize,
    /// Inverts values of at least 255 to 0.
    Solarize,
    /// Stretches each channel to 0..255.
    AutoContrast,
    /// Equalizes the histogram of each channel.
    Equalize,
}

impl RandAugmentOp {
    /// All operations.
    pub const ALL: [RandAugmentOp; 14] = [
        RandAugmentOp::Identity,
        RandAugmentOp::ShearX,
        RandAugmentOp::ShearY,
        RandAugmentOp::TranslateX,
        RandAugmentOp::TranslateY,
        RandAugmentOp::Rotate,
        RandAugmentOp::Brightness,
        RandAugmentOp::Color,
        RandAugmentOp::Contrast,
        RandAugmentOp::Sharpness,
        RandAugmentOp::Posterize,
        RandAugmentOp::Solarize,
        RandAugmentOp::AutoContrast,
        RandAugmentOp::Equalize,
    ];

    /// Returns whether the magnitude may be negative.
    pub fn has_sign(self) -> bool {
        use RandAugmentOp::*;
        !matches!(self, Identity | Posterize | Solarize | AutoContrast | Equalize)
    }

    /// Returns the magnitude of this strength, from 0 to 1, for an image of this size: a slope, pixels,
    /// degrees, a blend factor minus 1, bits or a threshold.
    pub fn magnitude(self, strength: f64, height: usize, width: usize) -> f64 {
        use RandAugmentOp::*;
        match self {
            Identity | AutoContrast | Equalize => 0.0,
            ShearX | ShearY => 0.3 * strength,
            TranslateX => 150.0 / 331.0 * width as f64 * strength,
            TranslateY => 150.0 / 331.0 * height as f64 * strength,
            Rotate => 30.0 * strength,
            Brightness | Color | Contrast | Sharpness => 0.9 * strength,
            Posterize => 8.0 - (4.0 * strength).round_ties_even(),
            Solarize => 255.0 * (1.0 - strength),
        }
    }

    /// Returns the operation with this magnitude, which may be negative if it [has a
    /// sign](RandAugmentOp::has_sign). Moved pixels are the nearest ones, and zero outside of the
    /// image.
    pub fn transform(self, image: &HostTensor, magnitude: f64) -> Result<Box<dyn Transform>> {
        let (h, w, _) = image_size(image)?;
        self.geometry(magnitude, h, w, &RandAugment::new(1, 0))
    }

    /// Returns the operation for an image of this size.
    fn geometry(
        self,
        magnitude: f64,
        height: usize,
        width: usize,
        settings: &RandAugment,
    ) -> Result<Box<dyn Transform>> {
        use RandAugmentOp::*;
        let warp = |matrix: [[f64; 3]; 2]| -> Result<Box<dyn Transform>> {
            let border = Border::Constant(settings.fill);
            Ok(Box::new(WarpAffine { matrix, interpolation: settings.interpolation, border }))
        };
        let factor = (1.0 + magnitude) as f32;
        // Shears keep the corner of the image, which is half a pixel from the center of the first one.
        let m = magnitude;
        match self {
            Identity => Ok(Box::new(super::Identity)),
            ShearX => warp([[1.0, -m, -0.5 * m], [0.0, 1.0, 0.0]]),
            ShearY => warp([[1.0, 0.0, 0.0], [-m, 1.0, -0.5 * m]]),
            TranslateX => warp([[1.0, 0.0, m.trunc()], [0.0, 1.0, 0.0]]),
            TranslateY => warp([[1.0, 0.0, 0.0], [0.0, 1.0, m.trunc()]]),
            Rotate => {
                let center = (width as f64 * 0.5 - 0.5, height as f64 * 0.5 - 0.5);
                warp(WarpAffine::rotation(center, m, 1.0))
            }
            Brightness => photometric("Brightness", move |image| enhance::brightness(image, factor)),
            Color => photometric("Color", move |image| enhance::color(image, factor)),
            Contrast => photometric("Contrast", move |image| enhance::contrast(image, factor)),
            Sharpness => photometric("Sharpness", move |image| enhance::sharpness(image, factor)),
            Posterize => photometric("Posterize", move |image| enhance::posterize(image, m as u32)),
            Solarize => photometric("Solarize", move |image| enhance::solarize(image, m as f32)),
            AutoContrast => photometric("AutoContrast", enhance::autocontrast),
            Equalize => photometric("Equalize", enhance::equalize),
        }
    }
}
