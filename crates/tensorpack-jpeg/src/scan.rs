//! Decoding the scan, MCU by MCU.

use crate::bit_reader::{BitReader, REFILL_BITS, remove_byte_stuffing};
use crate::header::{Component, Header, ZIGZAG, malformed};
use crate::huffman::HuffmanTable;
use crate::idct::{self, Coefficients, DequantTable, Simd};
use std::ops::Range;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The decoded samples of one component.
#[derive(Default)]
pub(crate) struct Plane {
    /// Samples per block side: 8, or less at reduced scale.
    pub(crate) n: usize,
    /// The range of decoded blocks.
    pub(crate) columns: Range<usize>,
    pub(crate) rows: Range<usize>,
    /// The samples of these blocks in row-major order.
    pub(crate) samples: Vec<u8>,
}

impl Plane {
    /// Returns the number of samples per row.
    pub(crate) fn stride(&self) -> usize {
        self.columns.len() * self.n
    }

    /// Returns row `y` of the component, starting at the first decoded column.
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        let from = (y - self.rows.start * self.n) * self.stride();
        &self.samples[from..from + self.stride()]
    }
}

/// The transposed position of every stored coefficient. Out-of-range positions of malformed data
/// map to the padding.
const TRANSPOSED_ZIGZAG: [u8; 128] = {
    let mut places = [64; 128];
    let mut i = 0;
    while i < 64 {
        places[i] = ZIGZAG[i] % 8 * 8 + ZIGZAG[i] / 8;
        i += 1;
    }
    places
};

/// The decoding state of a component.
struct Decoder<'a> {
    component: Component,
    dc: &'a HuffmanTable,
    ac: &'a HuffmanTable,
    dequant: DequantTable,
    /// The DC coefficient of the previous block.
    dc_predictor: i16,
}

/// Decodes the blocks that `planes` request and stops after the last one.
///
/// `bytes` is a reusable buffer for the entropy-coded data.
pub(crate) fn decode(header: &Header, planes: &mut [Plane], bytes: &mut Vec<u8>) -> Result<()> {
    let missing_table = || malformed("a table is missing");
    let decoder = |(component, plane): (&Component, &Plane)| {
        let table = header.quantization[component.quantization].as_ref()?;
        Some(Decoder {
            component: *component,
            dc: header.dc[component.dc].as_ref()?,
            ac: header.ac[component.ac].as_ref()?,
            dequant: idct::dequant_table(table, plane.n),
            dc_predictor: 0,
        })
    };
    let decoders: Option<Vec<Decoder>> = header.components.iter().zip(&*planes).map(decoder).collect();
    let mut decoders = decoders.ok_or_else(missing_table)?;
    let (across, down) = mcu_grid(header);
    let blocks: usize = header.components.iter().map(|c| c.h * c.v).sum();
    // A block takes at least two bits. Reject larger claims before allocating memory.
    if (across * down * blocks).div_ceil(4) > header.scan.len() {
        return Err(truncated());
    }
    for plane in &mut *planes {
        plane.samples.clear();
        plane.samples.resize(plane.stride() * plane.rows.len() * plane.n, 0);
    }
    let ends = header.components.iter().zip(&*planes).map(|(c, p)| p.rows.end.div_ceil(c.v));
    let mcu_count = ends.max().unwrap_or(0).min(down) * across;
    let restart_interval = if header.restart_interval == 0 { mcu_count } else { header.restart_interval };
    let simd = Simd::detect();
    let mut rest = header.scan;
    for from in (0..mcu_count).step_by(restart_interval.max(1)) {
        bytes.clear();
        rest = remove_byte_stuffing(rest, bytes);
        if let [0xFF, 0xD0..=0xD7, after @ ..] = rest {
            rest = after;
        }
        let mut bits = BitReader::new(bytes);
        decoders.iter_mut().for_each(|d| d.dc_predictor = 0);
        for mcu in from..(from + restart_interval).min(mcu_count) {
            for (decoder, plane) in decoders.iter_mut().zip(&mut *planes) {
                decoder.mcu(&mut bits, plane, mcu % across, mcu / across, simd).ok_or_else(invalid_code)?;
            }
            if bits.is_past_end() {
                return Err(truncated());
            }
        }
    }
    Ok(())
}

/// Returns the number of MCUs horizontally and vertically.
fn mcu_grid(header: &Header) -> (usize, usize) {
    let (h, v) = max_sampling(header);
    (header.width.div_ceil(8 * h), header.height.div_ceil(8 * v))
}

/// Returns the maximum sampling factors of all components.
pub(crate) fn max_sampling(header: &Header) -> (usize, usize) {
    header.components.iter().fold((1, 1), |(h, v), c| (h.max(c.h), v.max(c.v)))
}

/// Returns the number of blocks of the largest component, without padding to whole MCUs.
pub(crate) fn max_blocks(header: &Header) -> usize {
    let (h, v) = max_sampling(header);
    let blocks = |side: usize, sampling: usize, max: usize| (side * sampling).div_ceil(max).div_ceil(8);
    let of = |c: &Component| blocks(header.width, c.h, h) * blocks(header.height, c.v, v);
    header.components.iter().map(of).max().unwrap_or(0)
}

pub(crate) fn truncated() -> Error {
    Error::new(ErrorKind::Io, "truncated JPEG file: the data ends before the last block")
}

fn invalid_code() -> Error {
    malformed("invalid Huffman code")
}

impl Decoder<'_> {
    /// Decodes the blocks of this component in one MCU. Returns `None` on an invalid code.
    #[inline]
    fn mcu(&mut self, bits: &mut BitReader, plane: &mut Plane, x: usize, y: usize, simd: Simd) -> Option<()> {
        let Component { h, v, .. } = self.component;
        for row in y * v..(y + 1) * v {
            for column in x * h..(x + 1) * h {
                if plane.rows.contains(&row) && plane.columns.contains(&column) {
                    let (column, row) = (column - plane.columns.start, row - plane.rows.start);
                    let stride = plane.stride();
                    let at = (row * stride + column) * plane.n;
                    self.block(bits, plane.n, &mut plane.samples[at..], stride, simd)?;
                } else {
                    self.skip(bits)?;
                }
            }
        }
        Some(())
    }

    /// Decodes a block to samples.
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut BitReader,
        n: usize,
        out: &mut [u8],
        stride: usize,
        simd: Simd,
    ) -> Option<()> {
        bits.refill();
        self.dc_predictor = self.dc_predictor.wrapping_add(self.dc.read(bits, true)?.value);
        let mut coefficients: Coefficients = [0; 80];
        coefficients[0] = self.dc_predictor;
        let mut any = 0;
        for_each_ac(self.ac, bits, |k, value| {
            coefficients[usize::from(TRANSPOSED_ZIGZAG[k & 127])] = value;
            any |= value;
        })?;
        match any {
            0 => idct::idct_dc_only(n, self.dc_predictor, &self.dequant, out, stride),
            _ => idct::idct(n, simd, &coefficients, &self.dequant, out, stride),
        }
        Some(())
    }

    /// Skips a block that is not requested.
    #[inline(always)]
    fn skip(&mut self, bits: &mut BitReader) -> Option<()> {
        bits.refill();
        self.dc_predictor = self.dc_predictor.wrapping_add(self.dc.read(bits, true)?.value);
        for_each_ac(self.ac, bits, |_, _| {})
    }
}

/// Calls `visit` with the position and value of every AC coefficient. Positions of 64 and above are
/// to be ignored.
#[inline(always)]
fn for_each_ac(ac: &HuffmanTable, bits: &mut BitReader, mut visit: impl FnMut(usize, i16)) -> Option<()> {
    let mut own = *bits;
    let mut k = 1;
    loop {
        own.refill();
        for _ in 0..REFILL_BITS / HuffmanTable::MAX_FAST_BITS {
            let c = ac.read(&mut own, false)?;
            k += c.run;
            visit(k, c.value);
            k += 1;
            if k > 63 {
                *bits = own;
                return Some(());
            }
        }
    }
}
