//! Copies of bf16 operands as pairs: 32 bits with two neighboring terms of a sum, the first in the
//! low half. A missing second term is zero.

use std::ops::Range;

use crate::Isa;
use crate::partition;
use crate::simd::per_isa::per_isa;

/// How an operand becomes pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pairing {
    /// The terms of a sum are contiguous and even in number: the operand is used as it is.
    InPlace,
    /// Rows of an odd number of terms: each gets a zero at its end.
    Pad { rows: usize, terms: usize },
    /// Matrices `[terms, cols]`, whose rows are joined in twos: `[ceil(terms / 2), cols]` pairs.
    Rows { count: usize, terms: usize, cols: usize },
    /// Matrices `[terms, cols]`, which are transposed: `[cols, ceil(terms / 2)]` pairs.
    Transpose { count: usize, terms: usize, cols: usize },
}

/// Approximate number of pairs that a chunk writes.
const CHUNK: usize = 1 << 13;
/// Columns that a transposition takes at a time: whole cache lines of the source.
const BLOCK: usize = 32;

impl Pairing {
    /// Returns the pairing of rows of contiguous terms.
    pub(crate) fn along(rows: usize, terms: usize) -> Pairing {
        if terms.is_multiple_of(2) { Pairing::InPlace } else { Pairing::Pad { rows, terms } }
    }

    /// Returns the number of pairs that are written.
    pub(crate) fn len(&self) -> usize {
        match *self {
            Pairing::InPlace => 0,
            Pairing::Pad { rows, terms } => rows * terms.div_ceil(2),
            Pairing::Rows { count, terms, cols } | Pairing::Transpose { count, terms, cols } => {
                count * terms.div_ceil(2) * cols
            }
        }
    }

    /// Returns the number of independent chunks.
    pub(crate) fn chunks(&self) -> usize {
        match *self {
            _ if self.len() == 0 => 0,
            Pairing::InPlace => 0,
            Pairing::Pad { rows, .. } => self.len().div_ceil(CHUNK).min(rows),
            Pairing::Rows { count, terms, cols } => count * partition_of(terms, cols) * cols.div_ceil(CHUNK),
            Pairing::Transpose { count, terms, cols } => {
                count * partition_of(terms, cols).min(cols.div_ceil(BLOCK))
            }
        }
    }

    /// Writes the pairs of one chunk.
    ///
    /// # Safety
    /// The CPU supports `isa`; `src` is valid for the operand and `dst` for [`Pairing::len`] pairs;
    /// no other thread accesses the pairs of this chunk, and `chunk < chunks()`.
    pub(crate) unsafe fn run(&self, isa: Isa, chunk: usize, src: *const u16, dst: *mut u32) {
        // SAFETY: guaranteed by the caller; each chunk takes its own part of rows or columns.
        unsafe {
            match *self {
                Pairing::InPlace => (),
                Pairing::Pad { rows, terms } => {
                    pad(isa, src, terms, partition::part(rows, self.chunks(), chunk), dst);
                }
                Pairing::Rows { terms, cols, .. } => {
                    let blocks = cols.div_ceil(CHUNK);
                    let (chunk, block) = (chunk / blocks, chunk % blocks);
                    let parts = partition_of(terms, cols);
                    let (matrix, part) = (chunk / parts, chunk % parts);
                    let pairs = partition::part(terms.div_ceil(2), parts, part);
                    let src = src.wrapping_add(matrix * terms * cols);
                    let dst = dst.wrapping_add(matrix * terms.div_ceil(2) * cols);
                    join_rows(isa, src, [terms, cols], pairs, partition::part(cols, blocks, block), dst);
                }
                Pairing::Transpose { terms, cols, .. } => {
                    let blocks = cols.div_ceil(BLOCK);
                    let parts = partition_of(terms, cols).min(blocks);
                    let (matrix, part) = (chunk / parts, chunk % parts);
                    let part = partition::part(blocks, parts, part);
                    let src = src.wrapping_add(matrix * terms * cols);
                    let dst = dst.wrapping_add(matrix * terms.div_ceil(2) * cols);
                    let columns = part.start * BLOCK..(part.end * BLOCK).min(cols);
                    transpose(isa, src, [terms, cols], columns, dst);
                }
            }
        }
    }
}

/// Returns into how many parts a matrix is divided.
fn partition_of(terms: usize, cols: usize) -> usize {
    let pairs = terms.div_ceil(2);
    (pairs * cols).div_ceil(CHUNK).clamp(1, pairs.max(1))
}

fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

per_isa! {
    /// Copies `rows` of `terms` terms, an odd number.
    ///
    /// # Safety
    /// Same as [`Pairing::run`].
    unsafe fn pad(src: *const u16, terms: usize, rows: Range<usize>, dst: *mut u32) = pad_body
}

#[inline(always)]
unsafe fn pad_body<const FAST: bool>(src: *const u16, terms: usize, rows: Range<usize>, dst: *mut u32) {
    let pairs = terms.div_ceil(2);
    for row in rows {
        // SAFETY: a row of the operand, and the same row of pairs.
        unsafe {
            let from = std::slice::from_raw_parts(src.add(row * terms), terms);
            let to = std::slice::from_raw_parts_mut(dst.add(row * pairs), pairs);
            let (whole, rest) = from.as_chunks::<2>();
            for (to, from) in to.iter_mut().zip(whole) {
                *to = pair(from[0], from[1]);
            }
            to[pairs - 1] = pair(rest[0], 0);
        }
    }
}

per_isa! {
    /// Joins rows `2 * i` and `2 * i + 1` for all `i` in `pairs`, some columns of them.
    ///
    /// # Safety
    /// Same as [`Pairing::run`].
    unsafe fn join_rows(
        src: *const u16,
        sizes: [usize; 2],
        pairs: Range<usize>,
        cols: Range<usize>,
        dst: *mut u32,
    ) = join_rows_body
}

#[inline(always)]
unsafe fn join_rows_body<const FAST: bool>(
    src: *const u16,
    [terms, width]: [usize; 2],
    pairs: Range<usize>,
    cols: Range<usize>,
    dst: *mut u32,
) {
    for i in pairs {
        // SAFETY: columns of one or two rows of the operand, and of a row of pairs.
        unsafe {
            let row =
                |term: usize| std::slice::from_raw_parts(src.add(term * width + cols.start), cols.len());
            let to = std::slice::from_raw_parts_mut(dst.add(i * width + cols.start), cols.len());
            if 2 * i + 1 < terms {
                for ((to, &first), &second) in to.iter_mut().zip(row(2 * i)).zip(row(2 * i + 1)) {
                    *to = pair(first, second);
                }
            } else {
                for (to, &first) in to.iter_mut().zip(row(2 * i)) {
                    *to = pair(first, 0);
                }
            }
        }
    }
}

per_isa! {
    /// Writes some columns of a matrix as rows of pairs.
    ///
    /// # Safety
    /// Same as [`Pairing::run`].
    unsafe fn transpose(src: *const u16, sizes: [usize; 2], cols: Range<usize>, dst: *mut u32) = transpose_body
}

/// Pairs of a row of the result that are written together: a cache line.
const LINE: usize = 16;

#[inline(always)]
unsafe fn transpose_body<const FAST: bool>(
    src: *const u16,
    [terms, width]: [usize; 2],
    cols: Range<usize>,
    dst: *mut u32,
) {
    let pairs = terms.div_ceil(2);
    for first in cols.clone().step_by(BLOCK) {
        let here = (cols.end - first).min(BLOCK);
        for line in (0..pairs).step_by(LINE) {
            let lines = (pairs - line).min(LINE);
            // Joined rows first, which vectorizes, then their columns.
            let mut joined = [[0u32; BLOCK]; LINE];
            for (i, joined) in joined[..lines].iter_mut().enumerate() {
                let term = 2 * (line + i);
                // SAFETY: columns of one or two rows of the operand.
                unsafe {
                    let row = |term: usize| std::slice::from_raw_parts(src.add(term * width + first), here);
                    for (to, &from) in joined.iter_mut().zip(row(term)) {
                        *to = u32::from(from);
                    }
                    if term + 1 < terms {
                        for (to, &from) in joined.iter_mut().zip(row(term + 1)) {
                            *to |= u32::from(from) << 16;
                        }
                    }
                }
            }
            for col in 0..here {
                let to = dst.wrapping_add((first + col) * pairs + line);
                for (i, joined) in joined[..lines].iter().enumerate() {
                    // SAFETY: a pair of this column's row.
                    unsafe { *to.add(i) = joined[col] }
                }
            }
        }
    }
}
