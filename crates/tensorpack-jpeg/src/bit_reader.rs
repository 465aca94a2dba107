//! Reading bits of entropy-coded data.

/// Reads bits from a byte slice, most significant first. Past the end it returns zeros.
///
/// Byte stuffing has been removed (see [`remove_byte_stuffing`]), so a refill is a single load
/// without a branch to mispredict.
#[derive(Clone, Copy)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    next: usize,
    window: u64,
    count: u32,
}

/// Number of bits available after a refill.
pub(crate) const REFILL_BITS: u32 = 56;

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, next: 0, window: 0, count: 0 }
    }

    /// Ensures that at least [`REFILL_BITS`] bits are available.
    #[inline(always)]
    pub(crate) fn refill(&mut self) {
        let word = match self.bytes.get(self.next..) {
            Some([a, b, c, d, e, f, g, h, ..]) => u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
            rest => last_bytes(rest.unwrap_or_default()),
        };
        // The window may already hold bits beyond `count`. They are the same bits, so OR-ing them
        // again is harmless.
        self.window |= word >> self.count;
        self.next += ((63 - self.count) >> 3) as usize;
        self.count |= REFILL_BITS;
    }

    /// Returns the next `n` bits, 1 to 32.
    #[inline(always)]
    pub(crate) fn peek(&self, n: u32) -> usize {
        (self.window >> (64 - n)) as usize
    }

    /// Consumes `n` bits, which must be available.
    #[inline(always)]
    pub(crate) fn skip(&mut self, n: u32) {
        self.window <<= n;
        self.count -= n;
    }

    /// Returns whether more bits were consumed than exist.
    pub(crate) fn is_past_end(&self) -> bool {
        self.next * 8 > self.bytes.len() * 8 + self.count as usize
    }
}

#[cold]
fn last_bytes(rest: &[u8]) -> u64 {
    rest.iter().take(8).enumerate().fold(0, |word, (i, &b)| word | u64::from(b) << (56 - 8 * i))
}

/// Appends the entropy-coded bytes at the start of `data` to `out` without the zero stuffed after
/// every 0xFF. Returns the rest, which starts with the next marker or is empty.
pub(crate) fn remove_byte_stuffing<'a>(data: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let mut rest = data;
    while let Some(at) = position_of_ff(rest) {
        match rest.get(at + 1) {
            Some(0) => {
                out.extend_from_slice(&rest[..=at]);
                rest = &rest[at + 2..];
            }
            // A marker may be preceded by any number of fill bytes 0xFF.
            Some(0xFF) => {
                out.extend_from_slice(&rest[..at]);
                rest = &rest[at + 1..];
            }
            _ => {
                out.extend_from_slice(&rest[..at]);
                return &rest[at..];
            }
        }
    }
    out.extend_from_slice(rest);
    &[]
}

/// Returns the position of the first 0xFF, scanning 32 bytes at a time.
fn position_of_ff(bytes: &[u8]) -> Option<usize> {
    let blocks =
        bytes.chunks_exact(32).take_while(|c| c.iter().fold(0, |any, &b| any | u8::from(b == 0xFF)) == 0);
    let from = blocks.count() * 32;
    bytes[from..].iter().position(|&b| b == 0xFF).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bits_in_order_and_zeros_past_the_end() {
        let bytes: Vec<u8> = (0..23).map(|i| (i * 89 + 5) as u8).collect();
        let expected = |at: usize| bytes.get(at / 8).map_or(0, |b| b >> (7 - at % 8) & 1);
        let (mut bits, mut at) = (BitReader::new(&bytes), 0);
        while at < 23 * 8 + 40 {
            bits.refill();
            let n = 1 + at as u32 % 17;
            for i in 0..n {
                assert_eq!(bits.peek(i + 1) as u8 & 1, expected(at + i as usize), "bit {}", at + i as usize);
            }
            bits.skip(n);
            at += n as usize;
            assert_eq!(bits.is_past_end(), at > 23 * 8);
        }
    }

    #[test]
    fn byte_stuffing_ends_at_a_marker() {
        let mut out = Vec::new();
        let data = [1, 0xFF, 0, 2, 0xFF, 0xFF, 0xD9, 7];
        assert_eq!(remove_byte_stuffing(&data, &mut out), &[0xFF, 0xD9, 7]);
        assert_eq!(out, [1, 0xFF, 2]);
        let mut long = vec![3; 100];
        long[70] = 0xFF;
        long[71] = 0;
        out.clear();
        assert!(remove_byte_stuffing(&long, &mut out).is_empty());
        assert_eq!(out.len(), 99);
    }
}
