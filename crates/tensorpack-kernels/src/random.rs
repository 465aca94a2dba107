//! Uniform random numbers from the counter-based generator, many counters at a time.

use crate::Isa;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::{CounterRng, DType};

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// Counters per block; each yields four numbers.
const LANES: usize = 16;

/// Fills memory with the numbers of [`CounterRng::uniform`].
#[derive(Clone, Debug)]
pub struct Random {
    len: usize,
    dtype: DType,
}

impl Random {
    /// Prepares a kernel for `len` elements of `dtype`, which must be f32 or f64.
    pub fn new(len: usize, dtype: DType) -> Random {
        assert!(matches!(dtype, DType::F32 | DType::F64), "random numbers must be f32 or f64, not {dtype}");
        Random { len, dtype }
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.len.div_ceil(CHUNK)
    }

    /// Runs one chunk: element `i` is `rng.uniform(draw, first + i)`.
    ///
    /// # Safety
    /// `out` must be writable in full and aligned for the type, and the CPU must support `isa`.
    pub unsafe fn run(&self, isa: Isa, chunk: usize, rng: CounterRng, draw: u64, first: u64, out: *mut u8) {
        let start = chunk * CHUNK;
        let len = CHUNK.min(self.len - start);
        let first = first.wrapping_add(start as u64);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.dtype {
                DType::F64 => fill::<f64>(isa, &rng, draw, first, out.cast::<f64>().add(start), len),
                _ => fill::<f32>(isa, &rng, draw, first, out.cast::<f32>().add(start), len),
            }
        }
    }
}

/// A type that holds 24 random bits exactly.
pub(crate) trait Uniform: Copy {
    /// Converts a random word to a number in `[0, 1)`.
    fn from_word(word: u32) -> Self;
}

impl Uniform for f32 {
    #[inline(always)]
    fn from_word(word: u32) -> f32 {
        // Through a signed integer, which every instruction set converts in vectors.
        (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
    }
}

impl Uniform for f64 {
    #[inline(always)]
    fn from_word(word: u32) -> f64 {
        f64::from((word >> 8) as i32) * (1.0 / 16_777_216.0)
    }
}

per_isa! {
    /// Fills `out` with the numbers of elements `first`, `first + 1`, ... of a draw.
    ///
    /// # Safety
    /// `len` elements must be writable at `out`.
    pub(crate) unsafe fn fill<T: Uniform>(rng: &CounterRng, draw: u64, first: u64, out: *mut T, len: usize) = fill_body
}

#[inline(always)]
unsafe fn fill_body<T: Uniform, const FAST: bool>(
    rng: &CounterRng,
    draw: u64,
    first: u64,
    out: *mut T,
    len: usize,
) {
    // SAFETY: guaranteed by the caller.
    let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
    // One by one up to the first whole counter and after the last whole block.
    let head = (first.wrapping_neg() % 4).min(len as u64) as usize;
    let (head, body) = out.split_at_mut(head);
    for (i, x) in head.iter_mut().enumerate() {
        *x = T::from_word(rng.word(draw, first.wrapping_add(i as u64)));
    }
    let mut at = first.wrapping_add(head.len() as u64);
    let mut blocks = body.chunks_exact_mut(4 * LANES);
    for block in &mut blocks {
        let words = rng.lanes::<LANES>(draw, at / 4);
        for (l, four) in block.chunks_exact_mut(4).enumerate() {
            for (w, x) in four.iter_mut().enumerate() {
                *x = T::from_word(words[w][l]);
            }
        }
        at = at.wrapping_add(4 * LANES as u64);
    }
    for (i, x) in blocks.into_remainder().iter_mut().enumerate() {
        *x = T::from_word(rng.word(draw, at.wrapping_add(i as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_scalar_generator() {
        let rng = CounterRng::new(11, "random kernel");
        for isa in Isa::available() {
            for (len, first) in [(0, 0), (1, 3), (5, 2), (63, 1), (1000, 6), (70_000, 4_294_967_290 * 4)] {
                let (mut a, mut b) = (vec![0f32; len], vec![0f64; len]);
                for dtype in [DType::F32, DType::F64] {
                    let random = Random::new(len, dtype);
                    for chunk in (0..random.chunks()).rev() {
                        let out =
                            if dtype == DType::F32 { a.as_mut_ptr().cast() } else { b.as_mut_ptr().cast() };
                        // SAFETY: the vectors have `len` elements.
                        unsafe { random.run(isa, chunk, rng, 9, first, out) };
                    }
                }
                for i in 0..len {
                    let want = rng.uniform(9, first + i as u64);
                    assert_eq!(f64::from(a[i]), want, "{isa} {len} {i}");
                    assert_eq!(b[i], want, "{isa} {len} {i}");
                }
            }
        }
    }
}
