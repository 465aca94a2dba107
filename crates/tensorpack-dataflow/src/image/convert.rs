//! Color space and dtype conversions.

use super::pixels::{PixelValue, dispatch_pixel_type, image_size, rgb_size, shape_like};
use super::{Augmentor, Transform, luma, photometric};
use crate::SampleRng;
use tensorpack_tensor::{DType, HostTensor, Result};

/// Converts RGB to grayscale.
#[derive(Clone, Debug, Default)]
pub struct Grayscale {
    keep_channels: bool,
}

impl Grayscale {
    /// Produces one channel.
    pub fn new() -> Grayscale {
        Grayscale::default()
    }

    /// Produces three equal channels.
    #[doc(alias = "keepshape")]
    #[must_use]
    pub fn keep_channels(self) -> Grayscale {
        Grayscale { keep_channels: true }
    }
}

impl Augmentor for Grayscale {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let channels = if self.keep_channels { 3 } else { 1 };
        photometric("Grayscale", move |image| {
            let (h, w) = rgb_size(&image)?;
            dispatch_pixel_type!(image, T => {
                let pixels = image.as_slice::<T>()?.as_chunks::<3>().0.iter();
                let gray = pixels.flat_map(|p| std::iter::repeat_n(T::luma(*p), channels)).collect();
                HostTensor::new([h, w, channels], gray)
            })
        })
    }
}

/// Pixel types with a luma.
trait Luma: PixelValue {
    fn luma(pixel: [Self; 3]) -> Self;
}

impl Luma for u8 {
    fn luma([r, g, b]: [u8; 3]) -> u8 {
        luma::luma_u8(r, g, b)
    }
}

impl Luma for f32 {
    fn luma([r, g, b]: [f32; 3]) -> f32 {
        luma::luma_f32(r, g, b)
    }
}

/// Swaps red and blue: RGB to BGR or back.
#[doc(alias = "SwapRedBlue")]
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ColorSpace")]
pub struct RgbToBgr;

impl Augmentor for RgbToBgr {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        photometric("RgbToBgr", |mut image| {
            rgb_size(&image)?;
            dispatch_pixel_type!(image, T => {
                image.as_mut_slice::<T>()?.as_chunks_mut::<3>().0.iter_mut().for_each(|p| p.swap(0, 2));
            });
            Ok(image)
        })
    }
}

/// Converts to u8, rounding and clipping to 0..255.
#[derive(Clone, Copy, Debug)]
pub struct ToUint8;

impl Augmentor for ToUint8 {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        photometric("ToUint8", |image| convert::<u8>(image, DType::U8))
    }
}

/// Converts to f32.
#[derive(Clone, Copy, Debug)]
pub struct ToFloat32;

impl Augmentor for ToFloat32 {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        photometric("ToFloat32", |image| convert::<f32>(image, DType::F32))
    }
}

/// Converts an image to another dtype.
fn convert<U: PixelValue>(image: HostTensor, to: DType) -> Result<HostTensor> {
    let (h, w, c) = image_size(&image)?;
    if image.dtype() == to {
        return Ok(image);
    }
    dispatch_pixel_type!(image, T => {
        HostTensor::new(shape_like(&image, h, w, c), image.as_slice::<T>()?.iter().map(|x| U::from_f32(x.to_f32())).collect())
    })
}

/// Converts an image to f32.
pub(super) fn to_f32(image: HostTensor) -> Result<HostTensor> {
    convert::<f32>(image, DType::F32)
}
