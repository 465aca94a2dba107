//! Random mutations of files, for fuzzing parsers.

use tensorpack_dataflow::SampleRng;

/// Applies a few random mutations: bits, bytes, binary and decimal numbers, and pieces removed,
/// duplicated or spliced in from another file.
pub(crate) fn mutate(rng: &mut SampleRng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + rng.below(4) {
        let at = below(rng, bytes.len());
        let end = (at + 1 + below(rng, 16)).min(bytes.len());
        match rng.below(9) {
            _ if bytes.is_empty() => bytes.extend(other),
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.below(256) as u8,
            2 => bytes[at..end].fill([0, 0x7f, 0x80, 0xff][below(rng, 4)]),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => write_binary(rng, bytes, at),
            7 => write_decimal(rng, bytes, at),
            _ => {
                let from = below(rng, other.len());
                bytes.truncate(at);
                bytes.extend(&other[from.min(other.len())..]);
            }
        }
    }
}

fn below(rng: &mut SampleRng, n: usize) -> usize {
    rng.below(n.max(1) as u64) as usize
}

/// Returns a boundary value: a number at which arithmetic on sizes tends to overflow.
fn boundary_value(rng: &mut SampleRng, len: usize) -> u64 {
    let power = 1u64 << rng.below(64);
    match rng.below(5) {
        0 => power,
        1 => power - 1,
        2 => power.wrapping_neg(),
        3 => len as u64,
        _ => rng.below(5),
    }
}

/// Overwrites two, four or eight bytes with a boundary value, in either byte order.
fn write_binary(rng: &mut SampleRng, bytes: &mut [u8], at: usize) {
    let mut number = boundary_value(rng, bytes.len()).to_le_bytes();
    let width = (2 << rng.below(3)).min(bytes.len() - at);
    if rng.below(2) == 0 {
        number[..width].reverse();
    }
    bytes[at..at + width].copy_from_slice(&number[..width]);
}

/// Replaces the first decimal number after `at` with a boundary value.
fn write_decimal(rng: &mut SampleRng, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else { return };
    let digits = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let number = boundary_value(rng, bytes.len()).to_string();
    bytes.splice(start..start + digits, number.into_bytes());
}
