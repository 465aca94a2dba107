//! PNG files.

use super::Channels;
use png::{ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A PNG file whose header has been read.
pub(super) struct Png<'a> {
    file: &'a [u8],
    size: (usize, usize),
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("the PNG file cannot be decoded: {why}"))
}

impl<'a> Png<'a> {
    /// Reads the header.
    pub(super) fn open(file: &'a [u8]) -> Result<Png<'a>> {
        let mut decoder = Decoder::new(Cursor::new(file));
        let info = decoder.read_header_info().map_err(broken)?;
        Ok(Png { file, size: (info.height as usize, info.width as usize) })
    }

    /// Height and width.
    pub(super) fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Decodes the picture. Alpha is dropped, and of 16 bits the high 8 are kept.
    pub(super) fn decode(&self, channels: Channels) -> Result<Vec<u8>> {
        // Deflate makes 1032 bytes of one at most, and a pixel takes a bit at least: what is claimed to be larger must
        // not cost its memory.
        if self.size.0 * self.size.1 / 8 / 1032 > self.file.len() {
            return Err(broken("it was cut short"));
        }
        let limits = Limits { bytes: 16 * self.size.0 * self.size.1 + (1 << 20) };
        let mut decoder = Decoder::new_with_limits(Cursor::new(self.file), limits);
        decoder.set_transformations(Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(broken)?;
        let size = reader.output_buffer_size().ok_or_else(|| broken("it is too large"))?;
        let mut pixels = vec![0; size];
        let info = reader.next_frame(&mut pixels).map_err(broken)?;
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
