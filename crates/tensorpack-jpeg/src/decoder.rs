//! Decoding a file, in full or in part.

use crate::color::{self, Upsampler};
use crate::header::Header;
use crate::scan::{self, Plane};
use crate::{Channels, Rect, Scale};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Maximum number of pixels of an image. A tiny file can claim any size.
pub const MAX_PIXELS: usize = 1 << 27;

/// A JPEG file whose header has been parsed.
pub struct Jpeg<'a> {
    file: &'a [u8],
    header: Header<'a>,
}

/// Buffers reused across images.
#[derive(Default)]
pub struct Scratch {
    planes: Vec<Plane>,
    bytes: Vec<u8>,
}

impl<'a> Jpeg<'a> {
    /// Parses the header. Images of more than [`MAX_PIXELS`] pixels are rejected.
    pub fn open(file: &'a [u8]) -> Result<Jpeg<'a>> {
        let header = Header::read(file)?;
        let (h, w) = (header.height, header.width);
        if h * w > MAX_PIXELS {
            let why = format!("a JPEG image of {h}x{w} exceeds the limit of {MAX_PIXELS} pixels");
            return Err(Error::new(ErrorKind::Memory, why));
        }
        Ok(Jpeg { file, header })
    }

    /// Returns the height and width as stored, before the orientation is applied.
    pub fn size(&self) -> (usize, usize) {
        (self.header.height, self.header.width)
    }

    /// Returns the EXIF orientation, 1 to 8. 1 is upright.
    pub fn orientation(&self) -> u8 {
        self.header.orientation
    }

    /// Returns whether [`Jpeg::decode_crop`] supports this file.
    pub fn supports_crops(&self) -> bool {
        let (h, v) = scan::max_sampling(&self.header);
        self.header.is_supported && self.header.components.iter().all(|c| h % c.h == 0 && v % c.v == 0)
    }

    /// Decodes the whole image, whatever its kind, as `[height, width, channels]`.
    pub fn decode(&self, channels: Channels, scratch: &mut Scratch) -> Result<Vec<u8>> {
        if !self.supports_crops() {
            return self.decode_with_zune(channels);
        }
        let (h, w) = self.size();
        let crop = self.decode_crop(Rect::full(h, w), Scale::Full, channels, scratch)?;
        let mut out = vec![0; crop.len()];
        crop.write_to(&mut out)?;
        Ok(out)
    }

    /// Decodes the region `rect` of the image at `scale`. The region is in pixels of the scaled
    /// image.
    ///
    /// Returns an error if the file does not support crops, if the region is empty or outside the
    /// image, or if the data is malformed.
    pub fn decode_crop<'d>(
        &'d self,
        rect: Rect,
        scale: Scale,
        channels: Channels,
        scratch: &'d mut Scratch,
    ) -> Result<Crop<'d>> {
        if !self.supports_crops() {
            let why = "cannot decode a part of this JPEG file: it is progressive or not YCbCr";
            return Err(Error::new(ErrorKind::Unsupported, why).note("decode the whole image instead"));
        }
        let (h, w) = (scale.scaled(self.header.height), scale.scaled(self.header.width));
        if rect.width == 0 || rect.height == 0 || !rect.is_within(h, w) {
            return Err(Error::argument(format!("{rect:?} is empty or outside an image of {h}x{w}")));
        }
        let decoded = decoded_components(&self.header, channels);
        scratch.planes.resize_with(self.header.components.len(), Plane::default);
        for (i, plane) in scratch.planes.iter_mut().enumerate() {
            ComponentLayout::new(&self.header, i, scale.eighths()).request_blocks(rect, i < decoded, plane);
        }
        scan::decode(&self.header, &mut scratch.planes, &mut scratch.bytes)?;
        Ok(Crop { header: &self.header, planes: &scratch.planes, rect, scale, channels })
    }

    fn decode_with_zune(&self, channels: Channels) -> Result<Vec<u8>> {
        // A scan with the first coefficient of every block takes at least one bit for each. Reject
        // larger claims before allocating memory.
        if scan::max_blocks(&self.header).div_ceil(8) > self.header.scan.len() {
            return Err(scan::truncated());
        }
        use zune_jpeg::JpegDecoder;
        use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
        let color_space = match channels {
            Channels::Gray => ColorSpace::Luma,
            Channels::Rgb => ColorSpace::RGB,
        };
        let options = DecoderOptions::default()
            .jpeg_set_out_colorspace(color_space)
            .set_max_width(self.header.width)
            .set_max_height(self.header.height);
        let decoded = JpegDecoder::new_with_options(ZCursor::new(self.file), options).decode();
        decoded.map_err(|e| Error::new(ErrorKind::Io, format!("cannot decode JPEG file: {e:?}")))
    }
}

/// A decoded region whose chroma has not been upsampled yet.
pub struct Crop<'d> {
    header: &'d Header<'d>,
    planes: &'d [Plane],
    rect: Rect,
    scale: Scale,
    channels: Channels,
}

impl Crop<'_> {
    /// Returns the number of bytes of the region, height times width times channels.
    pub fn len(&self) -> usize {
        self.rect.height * self.rect.width * self.channels.count()
    }

    /// Returns false: a region has at least one pixel.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the pixels to `out`, whose length must be [`Crop::len`].
    pub fn write_to(&self, out: &mut [u8]) -> Result<()> {
        let Crop { rect, channels, .. } = *self;
        if out.len() != self.len() {
            let (is, needed) = (out.len(), self.len());
            return Err(Error::shape(format!("the output buffer has {is} bytes instead of {needed}")));
        }
        let planes = self.planes[..decoded_components(self.header, channels)].iter().enumerate();
        let mut components: Vec<Upsampler> = planes
            .map(|(i, plane)| {
                let layout = ComponentLayout::new(self.header, i, self.scale.eighths());
                Upsampler::new(plane, layout.size, layout.factor)
            })
            .collect();
        for (row, out) in (rect.y..).zip(out.chunks_exact_mut(rect.width * channels.count())) {
            match &mut components[..] {
                [y, cb, cr] => {
                    let [y, cb, cr] = [y, cb, cr].map(|c| c.row(rect.x, row, rect.width));
                    color::ycbcr_to_rgb(y, cb, cr, out);
                }
                gray => {
                    let samples = gray[0].row(rect.x, row, rect.width);
                    for (pixel, &sample) in out.chunks_exact_mut(channels.count()).zip(samples) {
                        pixel.fill(sample);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of components needed for `channels`.
fn decoded_components(header: &Header, channels: Channels) -> usize {
    if channels == Channels::Gray { 1 } else { header.components.len() }
}

/// The geometry of a component.
struct ComponentLayout {
    /// Samples per block side.
    n: usize,
    /// The size of the component.
    size: (usize, usize),
    /// Pixels per sample, horizontally and vertically.
    factor: (usize, usize),
}

impl ComponentLayout {
    /// Returns the geometry of component `i` at a scale of `n` eighths.
    fn new(header: &Header, i: usize, n: usize) -> ComponentLayout {
        let (h, v) = scan::max_sampling(header);
        let component = &header.components[i];
        let (across, down) = (h / component.h, v / component.v);
        // A subsampled component needs less downscaling, and then less upsampling.
        let mut more = 1;
        while n * more < 8 && across % (2 * more) == 0 && down % (2 * more) == 0 {
            more *= 2;
        }
        let size = |all: usize, factor: usize| (all.div_ceil(factor) * n * more).div_ceil(8);
        ComponentLayout {
            n: n * more,
            size: (size(header.width, across), size(header.height, down)),
            factor: (across / more, down / more),
        }
    }

    /// Requests the blocks under `rect`, plus those needed to interpolate at its edges.
    fn request_blocks(&self, rect: Rect, is_decoded: bool, plane: &mut Plane) {
        let range = |from: usize, length: usize, factor: usize, size: usize| {
            let margin = usize::from(factor > 1);
            let first = (from / factor).saturating_sub(margin);
            let end = ((from + length - 1) / factor + 1 + margin).min(size);
            if is_decoded { first / self.n..end.div_ceil(self.n) } else { 0..0 }
        };
        plane.n = self.n;
        plane.columns = range(rect.x, rect.width, self.factor.0, self.size.0);
        plane.rows = range(rect.y, rect.height, self.factor.1, self.size.1);
    }
}
