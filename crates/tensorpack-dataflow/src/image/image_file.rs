//! Files that hold pictures.

use super::jpeg::{self, Jpeg};
use super::orientation::Orientation;
use super::png::Png;
use super::resize::{Region, resize_region};
use super::{Interpolation, Rect};
use std::cell::RefCell;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// The channels of a decoded picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// One: brightness.
    #[doc(alias = "Grey")]
    Gray,
    /// Three: red, green, blue.
    #[default]
    Rgb,
}

impl Channels {
    /// How many.
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::Rgb => 3,
        }
    }
}

/// The most pixels that are decoded: a file of a few bytes can claim any size.
const MAX_PIXELS: usize = 1 << 27;

/// A JPEG or PNG file in memory, of which the header has been read.
///
/// Pictures come upright: the orientation that a camera wrote into a JPEG file is applied, as OpenCV does.
pub struct ImageFile<'a> {
    format: Format<'a>,
    orientation: Orientation,
}

enum Format<'a> {
    Jpeg(Box<Jpeg<'a>>),
    Png(Png<'a>),
}

/// Memory that one picture leaves to the next.
#[derive(Default)]
struct Scratch {
    jpeg: jpeg::Scratch,
    pixels: Vec<u8>,
    resized: Vec<u8>,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

/// Decodes a JPEG or PNG file to a picture of u8.
#[doc(alias = "imdecode")]
pub fn decode(file: &[u8], channels: Channels) -> Result<HostTensor> {
    ImageFile::open(file)?.decode(channels)
}

impl<'a> ImageFile<'a> {
    /// Reads the header. A picture of more than 2^27 pixels is refused.
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
            let why = format!("{} bytes are neither a JPEG nor a PNG file", file.len());
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        if h == 0 || w == 0 || h.saturating_mul(w) > MAX_PIXELS {
            let why =
                format!("a picture of {h} by {w} pixels is not decoded: the limit is {MAX_PIXELS} pixels");
            return Err(Error::new(ErrorKind::Memory, why));
        }
        Ok(ImageFile { format, orientation })
    }

    /// Height and width.
    pub fn size(&self) -> (usize, usize) {
        self.orientation.size(self.stored_size())
    }

    fn stored_size(&self) -> (usize, usize) {
        match &self.format {
            Format::Jpeg(jpeg) => jpeg.size(),
            Format::Png(png) => png.size(),
        }
    }

    /// Decodes the whole picture.
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

    /// Decodes `rect` of the picture to `height` by `width` pixels in `out`.
    ///
    /// This does no more than it has to: of a JPEG file only the blocks under the part become pixels, and where the
    /// part is at least twice as large as asked for, it is decoded at a half, a quarter or an eighth of its size.
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
            return Err(Error::argument(format!("{rect:?} is not a part of a picture of {h} by {w} pixels")));
        }
        if out.len() != height * width * channels.count() {
            let (c, n) = (channels.count(), out.len());
            return Err(Error::shape(format!(
                "{height} by {width} pixels of {c} channels do not fill {n} bytes"
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

    fn decode_stored(&self, channels: Channels, scratch: &mut jpeg::Scratch) -> Result<Vec<u8>> {
        match &self.format {
            Format::Jpeg(jpeg) if jpeg.supports_crops() => {
                let (h, w) = jpeg.size();
                jpeg.decode_samples(8, Rect::full(h, w), channels, scratch)?;
                let mut out = vec![0; h * w * channels.count()];
                jpeg.write_pixels(8, Rect::full(h, w), channels, scratch, &mut out);
                Ok(out)
            }
            Format::Jpeg(jpeg) => jpeg.decode_full(channels),
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
                let n = jpeg_scale(rect, (height, width), interpolation);
                let (around, exact) = scale_rect(rect, n);
                let (h, w) = (around.height, around.width);
                jpeg.decode_samples(n, around, channels, &mut scratch.jpeg)?;
                if (h, w) == (height, width) && exact.is_full(h, w) {
                    jpeg.write_pixels(n, around, channels, &mut scratch.jpeg, out);
                    return Ok(());
                }
                scratch.pixels.resize(h * w * c, 0);
                jpeg.write_pixels(n, around, channels, &mut scratch.jpeg, &mut scratch.pixels);
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

/// At how many eighths of its size a part is to be decoded, so that it is still no smaller than asked for.
fn jpeg_scale(rect: Rect, (height, width): (usize, usize), interpolation: Interpolation) -> usize {
    let pixels = match interpolation {
        // It picks pixels that are in the picture, and makes none.
        Interpolation::Nearest => return 8,
        // The edges of a mean lie between pixels: at least two of them make one.
        Interpolation::Area => 2,
        _ => 1,
    };
    let is_enough =
        |&n: &usize| rect.height * n >= height * 8 * pixels && rect.width * n >= width * 8 * pixels;
    [1, 2, 4].into_iter().find(is_enough).unwrap_or(8)
}

/// Where a part lies at `n` eighths of the size: the pixels that it touches, and its place among them.
fn scale_rect(rect: Rect, n: usize) -> (Rect, Region) {
    let along = |from: usize, length: usize| {
        let (first, end) = (from * n / 8, ((from + length) * n).div_ceil(8));
        (first, end - first, (from * n) as f64 / 8.0 - first as f64, (length * n) as f64 / 8.0)
    };
    let (x, width, left, exact_width) = along(rect.x, rect.width);
    let (y, height, top, exact_height) = along(rect.y, rect.height);
    (Rect { x, y, width, height }, Region { left, top, width: exact_width, height: exact_height })
}
