//! Pictures at another size.

use super::pixels;
use fast_image_resize as fir;
use fir::images::{Image, ImageRef};
use fir::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use std::cell::RefCell;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// How values between pixels are found.
///
/// Pixels are squares: the centre of the first is half a pixel from the edge. All but `Area` look at as many pixels as
/// the name says also where a picture is made smaller, as OpenCV's methods do: fast, and not free of aliasing below
/// half the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "interp")]
pub enum Interpolation {
    /// The pixel that the centre lies in.
    Nearest,
    /// Between the 2 by 2 nearest.
    #[default]
    Linear,
    /// From the 4 by 4 nearest; overshoots at edges.
    Cubic,
    /// The mean of the pixels that a new pixel covers; `Linear` where the picture is made larger.
    Area,
    /// From the 8 by 8 nearest; overshoots at edges.
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

/// The cubic kernel with the slope -0.75 that OpenCV has.
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

/// The sinc under a window of four pixels.
fn lanczos(x: f64) -> f64 {
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
    if x.abs() < 4.0 { sinc(x) * sinc(x / 4.0) } else { 0.0 }
}

/// The picture at another size.
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
    let sizes = [height, width, channels];
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

/// A part of a picture with edges between pixels.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Region {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Region {
    /// All of a picture.
    pub(super) fn full(height: usize, width: usize) -> Region {
        Region { left: 0.0, top: 0.0, width: width as f64, height: height as f64 }
    }

    /// Whether it is all of a picture.
    pub(super) fn is_full(self, height: usize, width: usize) -> bool {
        self == Region::full(height, width)
    }
}

/// Writes `region` of a picture of `(height, width, channels)` to `out`, at size `(height, width)`.
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
                format!("{channels} channels of {dtype} cannot be resized: 1 to 4 of u8 or f32 can"),
            ));
        }
    };
    let failed = |e: &dyn std::fmt::Display| {
        Error::argument(format!("a picture of {h} by {w} cannot be resized to {height} by {width}: {e}"))
    };
    let number = |n: usize| u32::try_from(n).map_err(|e| failed(&e));
    let from = ImageRef::new(number(w)?, number(h)?, image, pixel).map_err(|e| failed(&e))?;
    let mut to = Image::from_slice_u8(number(width)?, number(height)?, out, pixel).map_err(|e| failed(&e))?;
    let shrinks = region.width >= width as f64 && region.height >= height as f64;
    let options = ResizeOptions::new()
        .resize_alg(interpolation.algorithm(shrinks))
        .crop(region.left, region.top, region.width, region.height)
        .use_alpha(false);
    thread_local!(static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new()));
    RESIZER.with(|r| r.borrow_mut().resize(&from, &mut to, &options)).map_err(|e| failed(&e))
}
