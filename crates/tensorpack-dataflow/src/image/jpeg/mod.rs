//! A JPEG decoder for crops and reduced scales.
//!
//! Entropy-coded data is read only up to the last block of the crop, and blocks beside it are
//! skipped without an inverse transform. Scales of 1/2, 1/4 and 1/8 use only the low frequencies of
//! each block. Supported are sequential 8-bit files in one scan, grayscale or YCbCr; `zune-jpeg`
//! decodes everything else (progressive, CMYK) in full.

mod bit_reader;
mod huffman;
mod idct;
mod exif;
mod header;
mod scan;
mod color;

use super::{Channels, Rect};
use color::Upsampler;
use header::Header;
use scan::Plane;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A JPEG file whose header has been parsed.
pub(super) struct Jpeg<'a> {
    file: &'a [u8],
    header: Header<'a>,
}

/// Buffers reused across images.
#[derive(Default)]
pub(super) struct Scratch {
    planes: Vec<Plane>,
    bytes: Vec<u8>,
}

impl<'a> Jpeg<'a> {
    /// Parses the header.
    pub(super) fn open(file: &'a [u8]) -> Result<Jpeg<'a>> {
        Ok(Jpeg { file, header: Header::read(file)? })
    }

    /// Returns the height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.header.height, self.header.width)
    }

    /// Returns the EXIF orientation, 1 to 8.
    pub(super) fn orientation(&self) -> u8 {
        self.header.orientation
    }

    /// Returns whether crops and scales can be decoded. If not, use [`Jpeg::decode_full`].
    pub(super) fn supports_crops(&self) -> bool {
        let (h, v) = scan::max_sampling(&self.header);
        self.header.is_supported && self.header.components.iter().all(|c| h % c.h == 0 && v % c.v == 0)
    }

    /// Decodes the samples that region `rect` needs at a scale of `n` eighths. The region must be
    /// non-empty and inside the scaled image.
    pub(super) fn decode_samples(
        &self,
        n: usize,
        rect: Rect,
        channels: Channels,
        scratch: &mut Scratch,
    ) -> Result<()> {
        scratch.planes.resize_with(self.header.components.len(), Plane::default);
        for (i, plane) in scratch.planes.iter_mut().enumerate() {
            let is_decoded = i < self.decoded_components(channels);
            ComponentLayout::new(&self.header, i, n).request_blocks(rect, is_decoded, plane);
        }
        scan::decode(&self.header, &mut scratch.planes, &mut scratch.bytes)
    }

    /// Writes the pixels of the same `rect` to `out`, after [`Jpeg::decode_samples`].
    pub(super) fn write_pixels(
        &self,
        n: usize,
        rect: Rect,
        channels: Channels,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) {
        let planes = scratch.planes[..self.decoded_components(channels)].iter().enumerate();
        let mut components: Vec<Upsampler> = planes
            .map(|(i, plane)| {
                let layout = ComponentLayout::new(&self.header, i, n);
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
    }

    /// Returns the number of components needed for `channels`.
    fn decoded_components(&self, channels: Channels) -> usize {
        if channels == Channels::Gray { 1 } else { self.header.components.len() }
    }

    /// Decodes the whole image, whatever its kind.
    pub(super) fn decode_full(&self, channels: Channels) -> Result<Vec<u8>> {
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
