//! Resizing.

use super::pixels;
use fast_image_resize as fir;
use fir::images::{Image, ImageRef};
use fir::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use std::cell::RefCell;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Interpolation methods, equivalent to those of OpenCV.
///
/// Pixels are squares: the center of the first one is half a pixel from the edge. Apart from
/// `Area`, the kernels are not widened when shrinking: fast, but subject to aliasing below half the
/// size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "interp")]
pub enum Interpolation {
    /// The pixel that contains the sampling point.
    Nearest,
    /// Bilinear, from 2 by 2 pixels.
    #[default]
    Linear,
    /// Bicubic, from 4 by 4 pixels. May overshoot at edges.
    Cubic,
    /// The average of the covered pixels. Same as `Linear` when enlarging.
    Area,
    /// Lanczos, from 8 by 8 pixels. May overshoot at edges.
    Lanczos,
}

impl Interpolation {
    fn algorithm(self, shrinks: bool) -> ResizeAlg {
        let filter = |name, function, support| {
            fir::Filter::new(name, function, support).map_or(FilterType::CatmullRom, FilterType::Custom)
        };
        match self {
            Interpolation::Nearest => ResizeAlg::Nearest,
            Interpolation::Area if shrinks => ResizeAlg::Convolution(FilterType::Box),
            Interpolation::Linear | Interpolation::Area => ResizeAlg::Interpolation(FilterType::Bilinear),
            Interpolation::Cubic => ResizeAlg::Interpolation(filter("cubic", cubic, 2.0)),
            Interpolation::Lanczos => ResizeAlg::Interpolation(filter("lanczos4", lanczos, 4.0)),
        }
    }
}

/// The cubic kernel with OpenCV's coefficient of -0.75.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    let x = x.abs();
    if x <= 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// The Lanczos kernel with a radius of four pixels.
fn lanczos(x: f64) -> f64 {
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
    if x.abs() < 4.0 { sinc(x) * sinc(x / 4.0) } else { 0.0 }
}

/// Resizes an image.
pub fn resize(
    image: &HostTensor,
    height: usize,
    width: usize,
    interpolation: Interpolation,
) -> Result<HostTensor> {
    let size = pixels::image_size(image)?;
    let (h, w, channels) = size;
    if (h, w) == (height, width) {
        return Ok(image.clone());
    }
    let sizes = pixels::shape_like(image, height, width, channels);
    let mut out = HostTensor::zeros(image.dtype(), sizes)?;
    let region = Region::full(h, w);
    let dtype = image.dtype();
    let out_bytes = match dtype {
        DType::U8 => out.as_mut_slice::<u8>()?,
        _ => bytemuck::cast_slice_mut(out.as_mut_slice::<f32>()?),
    };
    resize_region(image.as_bytes(), size, dtype, region, out_bytes, (height, width), interpolation)?;
    Ok(out)
}

/// A region of an image with fractional edges.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Region {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Region {
    /// Returns the region that covers a whole image.
    pub(super) fn full(height: usize, width: usize) -> Region {
        Region { left: 0.0, top: 0.0, width: width as f64, height: height as f64 }
    }

    /// Returns whether the region covers the whole image.
    pub(super) fn is_full(self, height: usize, width: usize) -> bool {
        self == Region::full(height, width)
    }
}

/// Resizes `region` of an image of `(height, width, channels)` into `out` of size `(height,
/// width)`.
pub(super) fn resize_region(
    image: &[u8],
    (h, w, channels): (usize, usize, usize),
    dtype: DType,
    region: Region,
    out: &mut [u8],
    (height, width): (usize, usize),
    interpolation: Interpolation,
) -> Result<()> {
    let pixel = match (dtype, channels) {
        (DType::U8, 1) => PixelType::U8,
        (DType::U8, 2) => PixelType::U8x2,
        (DType::U8, 3) => PixelType::U8x3,
        (DType::U8, 4) => PixelType::U8x4,
        (DType::F32, 1) => PixelType::F32,
        (DType::F32, 2) => PixelType::F32x2,
        (DType::F32, 3) => PixelType::F32x3,
        (DType::F32, 4) => PixelType::F32x4,
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "cannot resize {channels} channels of {dtype}; 1 to 4 channels of u8 or f32 are supported"
                ),
            ));
        }
    };
    let failed = |e: &dyn std::fmt::Display| {
        Error::argument(format!("cannot resize an image of {h}x{w} to {height}x{width}: {e}"))
    };
    let to_u32 = |n: usize| u32::try_from(n).map_err(|e| failed(&e));
    let from = ImageRef::new(to_u32(w)?, to_u32(h)?, image, pixel).map_err(|e| failed(&e))?;
    let mut to = Image::from_slice_u8(to_u32(width)?, to_u32(height)?, out, pixel).map_err(|e| failed(&e))?;
    let shrinks = region.width >= width as f64 && region.height >= height as f64;
    let options = ResizeOptions::new()
        .resize_alg(interpolation.algorithm(shrinks))
        .crop(region.left, region.top, region.width, region.height)
        .use_alpha(false);
    thread_local!(static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new()));
    RESIZER.with(|r| r.borrow_mut().resize(&from, &mut to, &options)).map_err(|e| failed(&e))
}
