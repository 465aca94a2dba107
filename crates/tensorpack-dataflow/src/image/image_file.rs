//! Decoding JPEG and PNG files.

use super::orientation::Orientation;
use super::png::Png;
use super::resize::{Region, resize_region};
use super::{Channels, Interpolation, Rect};
use std::cell::RefCell;
use tensorpack_jpeg::{Jpeg, MAX_PIXELS, Scale};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// A JPEG or PNG file in memory whose header has been parsed.
///
/// Images are returned upright: the EXIF orientation of JPEG files is applied, as in OpenCV.
pub struct ImageFile<'a> {
    format: Format<'a>,
    orientation: Orientation,
}

enum Format<'a> {
    Jpeg(Box<Jpeg<'a>>),
    Png(Png<'a>),
}

/// Buffers reused across images.
#[derive(Default)]
struct Scratch {
    jpeg: tensorpack_jpeg::Scratch,
    pixels: Vec<u8>,
    resized: Vec<u8>,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

/// Decodes a JPEG or PNG file to a u8 image.
#[doc(alias = "imdecode")]
pub fn decode(file: &[u8], channels: Channels) -> Result<HostTensor> {
    ImageFile::open(file)?.decode(channels)
}

impl<'a> ImageFile<'a> {
    /// Parses the header. Images of more than 2^27 pixels are rejected.
    pub fn open(file: &'a [u8]) -> Result<ImageFile<'a>> {
        let (format, orientation, (h, w)) = if file.starts_with(&[0xFF, 0xD8]) {
            let jpeg = Jpeg::open(file)?;
            let (orientation, size) = (Orientation(jpeg.orientation()), jpeg.size());
            (Format::Jpeg(Box::new(jpeg)), orientation, size)
        } else if file.starts_with(b"\x89PNG") {
            let png = Png::open(file)?;
            let size = png.size();
            (Format::Png(png), Orientation(1), size)
        } else {
            let why = format!("unsupported image format: {} bytes that are neither JPEG nor PNG", file.len());
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        if h == 0 || w == 0 || h.saturating_mul(w) > MAX_PIXELS {
            let why = format!("an image of {h}x{w} exceeds the limit of {MAX_PIXELS} pixels");
            return Err(Error::new(ErrorKind::Memory, why));
        }
        Ok(ImageFile { format, orientation })
    }

    /// Returns the height and width.
    pub fn size(&self) -> (usize, usize) {
        self.orientation.size(self.stored_size())
    }

    fn stored_size(&self) -> (usize, usize) {
        match &self.format {
            Format::Jpeg(jpeg) => jpeg.size(),
            Format::Png(png) => png.size(),
        }
    }

    /// Decodes the whole image.
    pub fn decode(&self, channels: Channels) -> Result<HostTensor> {
        let (height, width) = self.size();
        let c = channels.count();
        let mut pixels = SCRATCH.with(|s| self.decode_stored(channels, &mut s.borrow_mut().jpeg))?;
        if self.orientation != Orientation(1) {
            let stored = pixels;
            pixels = vec![0; stored.len()];
            self.orientation.upright(&stored, self.stored_size(), c, &mut pixels);
        }
        HostTensor::new([height, width, c], pixels)
    }

    /// Decodes the region `rect` of the image and resizes it to `height` by `width` pixels in
    /// `out`.
    ///
    /// For JPEG files only the blocks under the region are transformed, and a region at least twice
    /// as large as requested is decoded at 1/2, 1/4 or 1/8 scale.
    #[doc(alias = "decode_part")]
    #[doc(alias = "decode_and_crop_jpeg")]
    pub fn decode_crop(
        &self,
        rect: Rect,
        (height, width): (usize, usize),
        channels: Channels,
        interpolation: Interpolation,
        out: &mut [u8],
    ) -> Result<()> {
        let (h, w) = self.size();
        if rect.width == 0 || rect.height == 0 || !rect.is_within(h, w) {
            return Err(Error::argument(format!("{rect:?} is outside an image of {h}x{w}")));
        }
        if out.len() != height * width * channels.count() {
            let (c, n) = (channels.count(), out.len());
            return Err(Error::shape(format!(
                "the output buffer has {n} bytes instead of {height}x{width}x{c}"
            )));
        }
        let rect = self.orientation.stored(rect, self.stored_size());
        let size = self.orientation.size((height, width));
        SCRATCH.with(|scratch| {
            let scratch = &mut *scratch.borrow_mut();
            if self.orientation == Orientation(1) {
                return self.decode_stored_crop(rect, size, channels, interpolation, scratch, out);
            }
            let mut resized = std::mem::take(&mut scratch.resized);
            resized.resize(out.len(), 0);
            let decoded = self.decode_stored_crop(rect, size, channels, interpolation, scratch, &mut resized);
            self.orientation.upright(&resized, size, channels.count(), out);
            scratch.resized = resized;
            decoded
        })
    }

    fn decode_stored(&self, channels: Channels, scratch: &mut tensorpack_jpeg::Scratch) -> Result<Vec<u8>> {
        match &self.format {
            Format::Jpeg(jpeg) => jpeg.decode(channels, scratch),
            Format::Png(png) => png.decode(channels),
        }
    }

    fn decode_stored_crop(
        &self,
        rect: Rect,
        (height, width): (usize, usize),
        channels: Channels,
        interpolation: Interpolation,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let c = channels.count();
        match &self.format {
            Format::Jpeg(jpeg) if jpeg.supports_crops() => {
                let scale = jpeg_scale(rect, (height, width), interpolation);
                let (around, exact) = scale_rect(rect, scale.eighths());
                let (h, w) = (around.height, around.width);
                let crop = jpeg.decode_crop(around, scale, channels, &mut scratch.jpeg)?;
                if (h, w) == (height, width) && exact.is_full(h, w) {
                    return crop.write_to(out);
                }
                scratch.pixels.resize(h * w * c, 0);
                crop.write_to(&mut scratch.pixels)?;
                resize_region(
                    &scratch.pixels,
                    (h, w, c),
                    DType::U8,
                    exact,
                    out,
                    (height, width),
                    interpolation,
                )
            }
            _ => {
                let pixels = self.decode_stored(channels, &mut scratch.jpeg)?;
                let row = self.stored_size().1 * c;
                scratch.pixels.clear();
                for row in pixels.chunks_exact(row).skip(rect.y).take(rect.height) {
                    scratch.pixels.extend_from_slice(&row[rect.x * c..(rect.x + rect.width) * c]);
                }
                let exact = Region::full(rect.height, rect.width);
                let size = (rect.height, rect.width, c);
                resize_region(&scratch.pixels, size, DType::U8, exact, out, (height, width), interpolation)
            }
        }
    }
}

/// Returns the smallest scale at which the region is still no smaller than requested.
fn jpeg_scale(rect: Rect, (height, width): (usize, usize), interpolation: Interpolation) -> Scale {
    let pixels = match interpolation {
        // Nearest picks existing pixels; scaled decoding would create new ones.
        Interpolation::Nearest => return Scale::Full,
        // The edges of a box average fall between pixels, so at least two pixels must contribute.
        Interpolation::Area => 2,
        _ => 1,
    };
    let is_enough = |scale: &Scale| {
        let n = scale.eighths();
        rect.height * n >= height * 8 * pixels && rect.width * n >= width * 8 * pixels
    };
    [Scale::Eighth, Scale::Quarter, Scale::Half].into_iter().find(is_enough).unwrap_or(Scale::Full)
}

/// Scales a rectangle to `n` eighths. Returns the pixels it touches and its exact position among
/// them.
fn scale_rect(rect: Rect, n: usize) -> (Rect, Region) {
    let along = |from: usize, length: usize| {
        let (first, end) = (from * n / 8, ((from + length) * n).div_ceil(8));
        (first, end - first, (from * n) as f64 / 8.0 - first as f64, (length * n) as f64 / 8.0)
    };
    let (x, width, left, exact_width) = along(rect.x, rect.width);
    let (y, height, top, exact_height) = along(rect.y, rect.height);
    (Rect { x, y, width, height }, Region { left, top, width: exact_width, height: exact_height })
}
