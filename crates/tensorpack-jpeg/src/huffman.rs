//! Huffman decoding with a table that yields code and value bits in one lookup.

use crate::bit_reader::BitReader;

/// Bits per table lookup. Most coefficients of a photograph fit, including their value bits.
const LOOKUP_BITS: u32 = 11;

/// Maximum code length.
const MAX_CODE_LEN: usize = 16;

/// A coefficient and the run of zeros before it.
#[derive(Clone, Copy)]
pub(crate) struct Coefficient {
    pub(crate) run: usize,
    pub(crate) value: i16,
}

/// Marks table entries that need the slow path.
const LONG: u32 = 0x80;

/// Run length of the end-of-block code: more zeros than a block can hold.
const END_OF_BLOCK: usize = 64;

/// A Huffman table. A symbol encodes the run of zeros (high nibble, unused in DC tables) and the
/// number of value bits (low nibble).
pub(crate) struct HuffmanTable {
    /// Indexed by the next bits: `value << 16 | run << 8 | length` of a whole coefficient. If the
    /// code fits but its value does not, the value field holds the number of value bits, and the
    /// length field the code length with [`LONG`] set. If even the code does not fit, the entry is
    /// just [`LONG`].
    table: Box<[u32; 1 << LOOKUP_BITS]>,
    /// For every code length: `end` is the upper bound of its codes, left-aligned to 16 bits, and
    /// `first` is the index of its first symbol minus its first code.
    end: [u32; MAX_CODE_LEN + 1],
    first: [i32; MAX_CODE_LEN + 1],
    symbols: Vec<u8>,
}

impl HuffmanTable {
    /// Builds a table with `counts[i]` codes of length `i + 1`. Returns `None` if the counts are
    /// not a valid prefix code.
    pub(crate) fn new(counts: &[u8; MAX_CODE_LEN], symbols: &[u8], is_dc: bool) -> Option<HuffmanTable> {
        let mut table = HuffmanTable {
            table: Box::new([LONG; 1 << LOOKUP_BITS]),
            end: [0; MAX_CODE_LEN + 1],
            first: [0; MAX_CODE_LEN + 1],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=MAX_CODE_LEN {
            table.first[length] = index as i32 - code as i32;
            for _ in 0..counts[length - 1] {
                let symbol = *symbols.get(index)?;
                if is_dc && symbol > 15 {
                    return None;
                }
                if length as u32 <= LOOKUP_BITS {
                    table.insert(code, length as u32, symbol, is_dc)?;
                }
                (code, index) = (code + 1, index + 1);
            }
            if code > 1 << length {
                return None;
            }
            table.end[length] = code << (MAX_CODE_LEN - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Adds a code with every possible continuation.
    fn insert(&mut self, code: u32, length: u32, symbol: u8, is_dc: bool) -> Option<()> {
        let (run, bits) = run_and_size(symbol, is_dc);
        let from = (code << (LOOKUP_BITS - length)) as usize;
        let entries = self.table.get_mut(from..from + (1 << (LOOKUP_BITS - length)))?;
        for (i, entry) in entries.iter_mut().enumerate() {
            let (value, length) = match LOOKUP_BITS.checked_sub(length + bits) {
                Some(unused) => (extend(i >> unused, bits), length + bits),
                None => (bits as i16, length | LONG),
            };
            *entry = u32::from(value as u16) << 16 | (run as u32) << 8 | length;
        }
        Some(())
    }

    /// Decodes the next coefficient. Needs [`Self::MAX_FAST_BITS`] available bits; the slow path
    /// refills. Returns `None` on an invalid code.
    #[inline(always)]
    pub(crate) fn read(&self, bits: &mut BitReader, is_dc: bool) -> Option<Coefficient> {
        let entry = self.table[bits.peek(LOOKUP_BITS)];
        if entry & LONG != 0 {
            // Passed by value: taking its address would force the reader into memory in all inlined
            // callers.
            let (coefficient, after) = self.read_long(entry, *bits, is_dc)?;
            *bits = after;
            return Some(coefficient);
        }
        bits.skip(entry & 0xFF);
        Some(Coefficient { run: (entry >> 8 & 0xFF) as usize, value: (entry >> 16) as u16 as i16 })
    }

    /// Bits that [`Self::read`] needs, and the most it consumes without a refill.
    pub(crate) const MAX_FAST_BITS: u32 = LOOKUP_BITS;

    #[cold]
    fn read_long<'a>(
        &self,
        entry: u32,
        mut bits: BitReader<'a>,
        is_dc: bool,
    ) -> Option<(Coefficient, BitReader<'a>)> {
        bits.refill();
        let (run, n, length) = match entry {
            LONG => self.search(bits.peek(MAX_CODE_LEN as u32) as u32, is_dc)?,
            _ => ((entry >> 8 & 0xFF) as usize, entry >> 16, entry & 0x7F),
        };
        bits.skip(length);
        let value = if n == 0 { 0 } else { extend(bits.peek(n), n) };
        bits.skip(n);
        bits.refill();
        Some((Coefficient { run, value }, bits))
    }

    /// Finds the code at the start of 16 bits. Returns its run, number of value bits and length.
    fn search(&self, code: u32, is_dc: bool) -> Option<(usize, u32, u32)> {
        let length = (1..=MAX_CODE_LEN).find(|&n| code < self.end[n])?;
        let index = self.first[length] + (code >> (MAX_CODE_LEN - length)) as i32;
        let (run, n) = run_and_size(*self.symbols.get(index as usize)?, is_dc);
        Some((run, n, length as u32))
    }
}

/// Splits a symbol into the run of zeros and the number of value bits.
fn run_and_size(symbol: u8, is_dc: bool) -> (usize, u32) {
    let bits = u32::from(symbol & 15);
    match (is_dc, symbol >> 4) {
        (true, _) => (0, bits),
        // ZRL: sixteen zeros, the last of which acts as the value.
        (false, 15) => (15, bits),
        (false, _) if bits == 0 => (END_OF_BLOCK, 0),
        (false, run) => (run.into(), bits),
    }
}

/// The EXTEND procedure of the standard: values that start with a zero bit are negative.
fn extend(bits: usize, n: u32) -> i16 {
    let bits = (bits & ((1 << n) - 1)) as i32;
    let value = if n > 0 && bits >> (n - 1) == 0 { bits - (1 << n) + 1 } else { bits };
    value as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes 0, 10, 110, ..., each one bit longer.
    fn staircase(is_dc: bool) -> HuffmanTable {
        let symbols: Vec<u8> =
            if is_dc { (0..12).collect() } else { (0..12).map(|i| i << 4 | (i % 11)).collect() };
        let mut counts = [0; MAX_CODE_LEN];
        counts[..12].fill(1);
        HuffmanTable::new(&counts, &symbols, is_dc).expect("a prefix code")
    }

    #[test]
    fn reads_short_and_long_codes() {
        for n in 0..12u32 {
            // The code, followed by n bits of which the first is one: the smallest positive value
            // of this size.
            let ones = (1u64 << n) - 1;
            let word = if n == 0 { 0 } else { ones << (64 - n) | 1 << (62 - n) };
            let bytes = word.to_be_bytes();
            let mut bits = BitReader::new(&bytes);
            bits.refill();
            let c = staircase(true).read(&mut bits, true).expect("a code");
            assert_eq!((c.run, i32::from(c.value)), (0, if n == 0 { 0 } else { 1 << (n - 1) }), "size {n}");
        }
    }

    #[test]
    fn extend_decodes_negative_values() {
        assert_eq!(
            [extend(0, 1), extend(1, 1), extend(0, 3), extend(3, 3), extend(4, 3)],
            [-1, 1, -7, -4, 4]
        );
    }

    #[test]
    fn oversubscribed_codes_are_rejected() {
        let mut counts = [0; MAX_CODE_LEN];
        counts[0] = 3;
        assert!(HuffmanTable::new(&counts, &[0, 1, 2], true).is_none());
        assert!(HuffmanTable::new(&counts, &[0], true).is_none());
        assert!(HuffmanTable::new(&[0; MAX_CODE_LEN], &[], false).is_some());
    }
}
