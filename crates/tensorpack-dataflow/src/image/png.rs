//! PNG decoding.

use super::Channels;
use png::{ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A PNG file whose header has been parsed.
pub(super) struct Png<'a> {
    file: &'a [u8],
    size: (usize, usize),
}

fn malformed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot decode PNG file: {why}"))
}

impl<'a> Png<'a> {
    /// Parses the header.
    pub(super) fn open(file: &'a [u8]) -> Result<Png<'a>> {
        let mut decoder = Decoder::new(Cursor::new(file));
        let info = decoder.read_header_info().map_err(malformed)?;
        Ok(Png { file, size: (info.height as usize, info.width as usize) })
    }

    /// Returns the height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Decodes the image. Alpha is dropped, and 16-bit samples are reduced to their high byte.
    pub(super) fn decode(&self, channels: Channels) -> Result<Vec<u8>> {
        // Deflate expands at most 1032:1 and a pixel takes at least one bit. Reject larger claims
        // before allocating memory.
        if self.size.0 * self.size.1 / 8 / 1032 > self.file.len() {
            return Err(malformed("the file is truncated"));
        }
        let limits = Limits { bytes: 16 * self.size.0 * self.size.1 + (1 << 20) };
        let mut decoder = Decoder::new_with_limits(Cursor::new(self.file), limits);
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
