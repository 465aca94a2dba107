//! Argsort and top-k: the indices of elements in order of their values.

use std::cmp::Ordering;
use tensorpack_tensor::{DType, bf16, f16};

/// Approximate number of elements per chunk.
const CHUNK: usize = 8 * 1024;

/// For every row of `len` elements, the i64 indices of the first `take` elements in order of value.
/// The order is stable, and NaN is larger than any number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "Order")]
pub struct Argsort {
    /// Number of rows.
    pub rows: usize,
    /// Elements per row.
    pub len: usize,
    /// Number of indices to return per row, at most `len`.
    pub take: usize,
    /// Whether the largest comes first.
    pub descending: bool,
}

impl Argsort {
    fn rows_per_chunk(&self) -> usize {
        (CHUNK / self.len.max(1)).max(1)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        if self.take == 0 { 0 } else { self.rows.div_ceil(self.rows_per_chunk()) }
    }

    /// Returns the bytes of scratch memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        self.len * size_of::<i64>()
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// [`Argsort::check`] must have passed. `src` must be readable as `rows * len` elements of
    /// `dtype` and `dst` writable as `rows * take`; both must be aligned and must not overlap.
    /// `scratch` must be aligned for i64 and have at least [`Argsort::scratch_bytes`] bytes.
    pub unsafe fn run(&self, dtype: DType, chunk: usize, src: *const u8, dst: *mut i64, scratch: &mut [u8]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match dtype {
                DType::F32 => self.sort(chunk, src.cast::<f32>(), dst, scratch, |a, b| {
                    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                }),
                DType::F64 => self.sort(chunk, src.cast::<f64>(), dst, scratch, |a, b| {
                    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                }),
                DType::Bf16 => self.sort(chunk, src.cast::<bf16>(), dst, scratch, |a, b| {
                    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                }),
                DType::F16 => self.sort(chunk, src.cast::<f16>(), dst, scratch, |a, b| {
                    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                }),
                DType::I32 => self.sort(chunk, src.cast::<i32>(), dst, scratch, i32::cmp),
                DType::I64 => self.sort(chunk, src.cast::<i64>(), dst, scratch, i64::cmp),
                DType::U8 | DType::Bool => self.sort(chunk, src, dst, scratch, u8::cmp),
            }
        }
    }

    /// # Safety
    /// Same as [`Argsort::run`].
    unsafe fn sort<T>(
        &self,
        chunk: usize,
        src: *const T,
        dst: *mut i64,
        scratch: &mut [u8],
        compare: impl Fn(&T, &T) -> Ordering,
    ) {
        let Argsort { rows, len, take, descending } = *self;
        // SAFETY: the caller guarantees that the scratch memory is large enough and aligned.
        let indices = unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<i64>(), len) };
        for row in chunk * self.rows_per_chunk()..((chunk + 1) * self.rows_per_chunk()).min(rows) {
            // SAFETY: a row of the source, and its row of the output.
            let (values, out) = unsafe {
                (
                    std::slice::from_raw_parts(src.add(row * len), len),
                    std::slice::from_raw_parts_mut(dst.add(row * take), take),
                )
            };
            indices.iter_mut().enumerate().for_each(|(i, p)| *p = i as i64);
            let before = |a: &i64, b: &i64| {
                let order = compare(&values[*a as usize], &values[*b as usize]);
                (if descending { order.reverse() } else { order }).then(a.cmp(b))
            };
            if 0 < take && take < len {
                indices.select_nth_unstable_by(take - 1, before);
            }
            indices[..take].sort_unstable_by(before);
            out.copy_from_slice(&indices[..take]);
        }
    }
}
