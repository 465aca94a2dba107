//! Parsing the markers before the first scan.

use crate::huffman::HuffmanTable;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A color component.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    id: u8,
    /// Sampling factors: blocks per MCU, horizontally and vertically.
    pub(crate) h: usize,
    pub(crate) v: usize,
    /// Indices of the quantization table and of the DC and AC Huffman tables.
    pub(crate) quantization: usize,
    pub(crate) dc: usize,
    pub(crate) ac: usize,
}

/// A parsed file up to its first scan.
pub(crate) struct Header<'a> {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) components: Vec<Component>,
    /// Quantization tables in natural (row-major) order.
    pub(crate) quantization: [Option<[u16; 64]>; 4],
    pub(crate) dc: [Option<HuffmanTable>; 4],
    pub(crate) ac: [Option<HuffmanTable>; 4],
    /// MCUs between restart markers; 0 if there are none.
    pub(crate) restart_interval: usize,
    /// The EXIF orientation, 1 to 8.
    pub(crate) orientation: u8,
    /// The entropy-coded data and everything after it.
    pub(crate) scan: &'a [u8],
    /// Whether this decoder supports the file: one sequential scan, 8 bits, grayscale or YCbCr.
    pub(crate) is_supported: bool,
}

/// Zigzag order: the natural position of every stored coefficient.
pub(crate) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

pub(crate) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("malformed JPEG file: {what}"))
}

impl<'a> Header<'a> {
    /// Parses all markers up to the first scan.
    pub(crate) fn read(file: &'a [u8]) -> Result<Header<'a>> {
        let mut rest =
            file.strip_prefix(&[0xFF, 0xD8]).ok_or_else(|| malformed("it does not start with FF D8"))?;
        let mut header = Header {
            width: 0,
            height: 0,
            components: Vec::new(),
            quantization: [None; 4],
            dc: [const { None }; 4],
            ac: [const { None }; 4],
            restart_interval: 0,
            orientation: 1,
            scan: &[],
            is_supported: true,
        };
        let mut color_info = ColorInfo::default();
        loop {
            let (marker, body, after) = segment(rest)?;
            rest = after;
            match marker {
                0xC4 => header.huffman(body).ok_or_else(|| malformed("invalid Huffman table"))?,
                0xDB => header.quantization(body).ok_or_else(|| malformed("truncated quantization table"))?,
                0xDD => {
                    header.restart_interval =
                        be_u16(body, 0).ok_or_else(|| malformed("truncated restart interval"))?
                }
                // Frames: baseline and extended sequential, then progressive, lossless and
                // arithmetic ones.
                0xC0 | 0xC1 => header.frame(body)?,
                0xC2..=0xCF if marker != 0xC8 && marker != 0xCC => {
                    header.frame(body)?;
                    header.is_supported = false;
                }
                0xE0 => color_info.jfif |= body.starts_with(b"JFIF\0"),
                0xE1 => header.orientation = crate::exif::orientation(body).unwrap_or(header.orientation),
                0xEE if body.starts_with(b"Adobe") => color_info.adobe = body.get(11).copied(),
                0xDA => {
                    header.scan(body)?;
                    header.scan = rest;
                    header.is_supported &= color_info.is_gray_or_ycbcr(&header.components);
                    return Ok(header);
                }
                0xD9 => return Err(malformed("no scan")),
                _ => {}
            }
        }
    }

    fn frame(&mut self, body: &[u8]) -> Result<()> {
        if !self.components.is_empty() {
            return Err(malformed("more than one frame"));
        }
        let cut = || malformed("truncated frame header");
        let (height, width) = (be_u16(body, 1).ok_or_else(cut)?, be_u16(body, 3).ok_or_else(cut)?);
        let n = usize::from(*body.get(5).ok_or_else(cut)?);
        let components = body.get(6..6 + 3 * n).ok_or_else(cut)?;
        if width == 0 || height == 0 || n == 0 || n > 4 {
            return Err(malformed(&format!("invalid size {width}x{height} or number of components {n}")));
        }
        (self.width, self.height) = (width, height);
        self.is_supported &= body[0] == 8;
        for c in components.chunks_exact(3) {
            let (h, v) = (usize::from(c[1] >> 4), usize::from(c[1] & 15));
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) || c[2] > 3 {
                return Err(malformed("invalid sampling factors"));
            }
            self.components.push(Component { id: c[0], h, v, quantization: c[2].into(), dc: 0, ac: 0 });
        }
        // The sampling factors of a single component have no meaning.
        if let [only] = &mut self.components[..] {
            (only.h, only.v) = (1, 1);
        }
        Ok(())
    }

    fn scan(&mut self, body: &[u8]) -> Result<()> {
        let n = usize::from(*body.first().unwrap_or(&0));
        let tables = body.get(1..1 + 2 * n).ok_or_else(|| malformed("truncated scan header"))?;
        if self.components.is_empty() {
            return Err(malformed("the scan precedes the frame header"));
        }
        self.is_supported &= n == self.components.len();
        for (c, t) in self.components.iter_mut().zip(tables.chunks_exact(2)) {
            self.is_supported &= c.id == t[0];
            (c.dc, c.ac) = (usize::from(t[1] >> 4) & 3, usize::from(t[1]) & 3);
        }
        Ok(())
    }

    fn huffman(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&class, rest)) = body.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let n = counts.iter().map(|&c| usize::from(c)).sum();
            let (symbols, rest) = rest.split_at_checked(n)?;
            let is_dc = class >> 4 == 0;
            let tables = if is_dc { &mut self.dc } else { &mut self.ac };
            tables[usize::from(class) & 3] = Some(HuffmanTable::new(counts, symbols, is_dc)?);
            body = rest;
        }
        Some(())
    }

    fn quantization(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&class, rest)) = body.split_first() {
            let bytes = if class >> 4 == 0 { 1 } else { 2 };
            let (values, rest) = rest.split_at_checked(64 * bytes)?;
            let mut table = [0; 64];
            for (value, &at) in values.chunks_exact(bytes).zip(&ZIGZAG) {
                table[usize::from(at)] = value.iter().fold(0, |v, &b| v << 8 | u16::from(b));
            }
            self.quantization[usize::from(class) & 3] = Some(table);
            body = rest;
        }
        Some(())
    }
}

/// The markers that determine the color space.
#[derive(Default)]
struct ColorInfo {
    jfif: bool,
    adobe: Option<u8>,
}

impl ColorInfo {
    /// Returns whether the file is grayscale or YCbCr, by the rules of libjpeg.
    fn is_gray_or_ycbcr(&self, components: &[Component]) -> bool {
        match components {
            [_] => true,
            [a, b, c] => {
                self.jfif || self.adobe.map_or([a.id, b.id, c.id] != *b"RGB", |transform| transform != 0)
            }
            _ => false,
        }
    }
}

/// Splits off the next marker and its body.
fn segment(data: &[u8]) -> Result<(u8, &[u8], &[u8])> {
    let cut = || malformed("truncated segment");
    // Decoders skip any bytes before a marker.
    let mut rest = data;
    let marker = loop {
        let at = rest.iter().position(|&b| b == 0xFF).ok_or_else(cut)?;
        let (&next, after) = rest[at + 1..].split_first().ok_or_else(cut)?;
        rest = if next == 0xFF { &rest[at + 1..] } else { after };
        if next != 0 && next != 0xFF {
            break next;
        }
    };
    if matches!(marker, 0x01 | 0xD0..=0xD9) {
        return Ok((marker, &[], rest));
    }
    let length = be_u16(rest, 0).filter(|&n| n >= 2).ok_or_else(cut)?;
    let (body, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
    Ok((marker, &body[2..], rest))
}

/// Reads a big-endian 16-bit number.
fn be_u16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(*bytes.get(at)?) << 8 | usize::from(*bytes.get(at + 1)?))
}
