//! Huffman codes, looked up with the bits that follow them.

use super::bits::Bits;

/// How many bits are looked up at once. Most coefficients of a photograph, code and value together, are no longer.
const LOOKUP: u32 = 11;

/// The longest code.
const LONGEST: usize = 16;

/// A coefficient, and how many zeros come before it.
#[derive(Clone, Copy)]
pub(super) struct Coefficient {
    pub(super) zeros: usize,
    pub(super) value: i16,
}

/// The coefficient is longer than what is looked up.
const LONG: u32 = 0x80;

/// What a code says of the rest of a block where nothing else follows: more zeros than a block has room for.
const END_OF_BLOCK: usize = 64;

/// A table of codes. A code stands for a byte: how many zeros come first (the high half, of no use in tables for
/// the first coefficient), and in how many bits the value follows (the low half).
pub(super) struct Huffman {
    /// For the next bits: value, zeros and length of a whole coefficient as `value << 16 | zeros << 8 | length`. Where
    /// the code fits and the value does not, with the number of its bits for the value, the code's length, and
    /// [`LONG`]; where not even the code does, [`LONG`] alone.
    table: Box<[u32; 1 << LOOKUP]>,
    /// For each length, the codes of that length are those below `end`, left-aligned in 16 bits, and `first` is the
    /// index of their symbols, less their code.
    end: [u32; LONGEST + 1],
    first: [i32; LONGEST + 1],
    symbols: Vec<u8>,
}

impl Huffman {
    /// The table with `counts[i]` codes of length `i + 1`, or `None` if there cannot be one. `is_dc`: for the first
    /// coefficients of blocks.
    pub(super) fn new(counts: &[u8; LONGEST], symbols: &[u8], is_dc: bool) -> Option<Huffman> {
        let mut table = Huffman {
            table: Box::new([LONG; 1 << LOOKUP]),
            end: [0; LONGEST + 1],
            first: [0; LONGEST + 1],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=LONGEST {
            table.first[length] = index as i32 - code as i32;
            for _ in 0..counts[length - 1] {
                let symbol = *symbols.get(index)?;
                if is_dc && symbol > 15 {
                    return None;
                }
                if length as u32 <= LOOKUP {
                    table.look_up(code, length as u32, symbol, is_dc)?;
                }
                (code, index) = (code + 1, index + 1);
            }
            if code > 1 << length {
                return None;
            }
            table.end[length] = code << (LONGEST - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Enters a code, with all that can follow it.
    fn look_up(&mut self, code: u32, length: u32, symbol: u8, is_dc: bool) -> Option<()> {
        let (zeros, bits) = meaning(symbol, is_dc);
        let from = (code << (LOOKUP - length)) as usize;
        let entries = self.table.get_mut(from..from + (1 << (LOOKUP - length)))?;
        for (i, entry) in entries.iter_mut().enumerate() {
            let (value, length) = match LOOKUP.checked_sub(length + bits) {
                Some(unused) => (extend(i >> unused, bits), length + bits),
                None => (bits as i16, length | LONG),
            };
            *entry = u32::from(value as u16) << 16 | (zeros as u32) << 8 | length;
        }
        Some(())
    }

    /// The next coefficient; needs [`Self::FAST`] bits, or refills. `None` if no code begins with the bits.
    #[inline(always)]
    pub(super) fn read(&self, bits: &mut Bits, is_dc: bool) -> Option<Coefficient> {
        let entry = self.table[bits.peek(LOOKUP)];
        if entry & LONG != 0 {
            // By value: what lends its address has to live in memory, here and in all that is inlined around it.
            let (coefficient, after) = self.read_long(entry, *bits, is_dc)?;
            *bits = after;
            return Some(coefficient);
        }
        bits.skip(entry & 0xFF);
        Some(Coefficient { zeros: (entry >> 8 & 0xFF) as usize, value: (entry >> 16) as u16 as i16 })
    }

    /// How many bits [`Self::read`] needs to be there, and uses at most without a refill.
    pub(super) const FAST: u32 = LOOKUP;

    #[cold]
    fn read_long<'a>(&self, entry: u32, mut bits: Bits<'a>, is_dc: bool) -> Option<(Coefficient, Bits<'a>)> {
        bits.refill();
        let (zeros, n, length) = match entry {
            LONG => self.search(bits.peek(LONGEST as u32) as u32, is_dc)?,
            _ => ((entry >> 8 & 0xFF) as usize, entry >> 16, entry & 0x7F),
        };
        bits.skip(length);
        let value = if n == 0 { 0 } else { extend(bits.peek(n), n) };
        bits.skip(n);
        bits.refill();
        Some((Coefficient { zeros, value }, bits))
    }

    /// Zeros, bits of the value and length of the code at the front of 16 bits.
    fn search(&self, code: u32, is_dc: bool) -> Option<(usize, u32, u32)> {
        let length = (1..=LONGEST).find(|&n| code < self.end[n])?;
        let index = self.first[length] + (code >> (LONGEST - length)) as i32;
        let (zeros, n) = meaning(*self.symbols.get(index as usize)?, is_dc);
        Some((zeros, n, length as u32))
    }
}

/// The zeros before a coefficient, and the bits of its value.
fn meaning(symbol: u8, is_dc: bool) -> (usize, u32) {
    let bits = u32::from(symbol & 15);
    match (is_dc, symbol >> 4) {
        (true, _) => (0, bits),
        // Sixteen zeros, the last of which is as good as a value.
        (false, 15) => (15, bits),
        (false, _) if bits == 0 => (END_OF_BLOCK, 0),
        (false, zeros) => (zeros.into(), bits),
    }
}

/// The value that `n` bits stand for: those that begin with a zero are negative.
fn extend(bits: usize, n: u32) -> i16 {
    let bits = (bits & ((1 << n) - 1)) as i32;
    let value = if n > 0 && bits >> (n - 1) == 0 { bits - (1 << n) + 1 } else { bits };
    value as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes 0, 10, 110, ..., each one bit longer.
    fn staircase(is_dc: bool) -> Huffman {
        let symbols: Vec<u8> =
            if is_dc { (0..12).collect() } else { (0..12).map(|i| i << 4 | (i % 11)).collect() };
        let mut counts = [0; LONGEST];
        counts[..12].fill(1);
        Huffman::new(&counts, &symbols, is_dc).expect("a prefix code")
    }

    #[test]
    fn short_and_long_codes_are_read() {
        for n in 0..12u32 {
            // The code, then n bits of which the first is one: the least positive value of this size.
            let ones = (1u64 << n) - 1;
            let word = if n == 0 { 0 } else { ones << (64 - n) | 1 << (62 - n) };
            let bytes = word.to_be_bytes();
            let mut bits = Bits::new(&bytes);
            bits.refill();
            let c = staircase(true).read(&mut bits, true).expect("a code");
            assert_eq!((c.zeros, i32::from(c.value)), (0, if n == 0 { 0 } else { 1 << (n - 1) }), "size {n}");
        }
    }

    #[test]
    fn negative_values_begin_with_a_zero() {
        assert_eq!(
            [extend(0, 1), extend(1, 1), extend(0, 3), extend(3, 3), extend(4, 3)],
            [-1, 1, -7, -4, 4]
        );
    }

    #[test]
    fn too_many_codes_are_no_table() {
        let mut counts = [0; LONGEST];
        counts[0] = 3;
        assert!(Huffman::new(&counts, &[0, 1, 2], true).is_none());
        assert!(Huffman::new(&counts, &[0], true).is_none());
        assert!(Huffman::new(&[0; LONGEST], &[], false).is_some());
    }
}
