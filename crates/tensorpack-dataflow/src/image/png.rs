//! PNG decoding.

use super::Channels;
use png::{ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A PNG file whose header has been parsed.
pub(super) struct Png<'a> {
    file: &'a [u8],
    size: (usize, usize),
    /// The least number of bytes of the image before compression.
    raw_bytes: usize,
}

fn malformed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot decode PNG file: {why}"))
}

impl<'a> Png<'a> {
    /// Parses the header.
    pub(super) fn open(file: &'a [u8]) -> Result<Png<'a>> {
        let mut decoder = Decoder::new(Cursor::new(file));
        let info = decoder.read_header_info().map_err(malformed)?;
        let size = (info.height as usize, info.width as usize);
        let pixels = size.0.saturating_mul(size.1);
        Ok(Png { file, size, raw_bytes: pixels.saturating_mul(info.bits_per_pixel()) / 8 })
    }

    /// Returns the height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Decodes the image. Alpha is dropped, and 16-bit samples are reduced to their high byte.
    pub(super) fn decode(&self, channels: Channels) -> Result<Vec<u8>> {
        // Deflate expands at most 1032:1. Reject larger claims before allocating memory.
        let compressed = image_data_len(self.file);
        if self.raw_bytes / 1032 > compressed {
            let (h, w) = self.size;
            let why = format!("it is truncated: {compressed} bytes of data for an image of {h}x{w}");
            return Err(malformed(why));
        }
        let limits = Limits { bytes: 16 * self.size.0 * self.size.1 + (1 << 20) };
        let mut decoder = Decoder::new_with_limits(Cursor::new(self.file), limits);
        // Texts and color profiles are compressed, too, and are not used.
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.set_transformations(Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(malformed)?;
        let size = reader.output_buffer_size().ok_or_else(|| malformed("the image is too large"))?;
        let mut pixels = vec![0; size];
        let info = reader.next_frame(&mut pixels).map_err(malformed)?;
        let stored = match info.color_type {
            ColorType::Grayscale => 1,
            ColorType::GrayscaleAlpha => 2,
            ColorType::Rgb => 3,
            _ => 4,
        };
        let pixels = pixels.chunks_exact(stored);
        Ok(match channels {
            Channels::Rgb if stored < 3 => pixels.flat_map(|p| [p[0]; 3]).collect(),
            Channels::Rgb => pixels.flat_map(|p| [p[0], p[1], p[2]]).collect(),
            Channels::Gray if stored < 3 => pixels.map(|p| p[0]).collect(),
            Channels::Gray => pixels.map(|p| super::luma::luma_u8(p[0], p[1], p[2])).collect(),
        })
    }
}

/// Returns the total length of the chunks that hold the compressed image.
fn image_data_len(file: &[u8]) -> usize {
    const SIGNATURE: usize = 8;
    let (mut total, mut rest) = (0, file.get(SIGNATURE..).unwrap_or_default());
    // A chunk is its length, its type, its data and a checksum.
    while let Some((&[a, b, c, d, ref kind @ ..], data)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if kind == b"IDAT" {
            total += length.min(data.len());
        }
        rest = data.get(length.saturating_add(4)..).unwrap_or_default();
    }
    total
}
