//! Places of elements in the order of their values.

use std::cmp::Ordering;
use tensorpack_tensor::{DType, bf16};

/// Elements of one chunk, more or less.
const CHUNK: usize = 8 * 1024;

/// For every row of `len` elements, the places (i64) of the first `take` of them in order of value. Of equals the
/// earlier comes first; a NaN is larger than any number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Argsort {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub len: usize,
    /// How many places are wanted, at most all.
    pub take: usize,
    /// The largest first.
    pub descending: bool,
}

impl Argsort {
    fn group(&self) -> usize {
        (CHUNK / self.len.max(1)).max(1)
    }

    /// Into how many chunks the work is cut.
    pub fn chunks(&self) -> usize {
        if self.take == 0 { 0 } else { self.rows.div_ceil(self.group()) }
    }

    /// Bytes of working memory a thread needs while it runs a chunk.
    pub fn scratch_bytes(&self) -> usize {
        self.len * size_of::<i64>()
    }

    /// Does one chunk.
    ///
    /// # Safety
    /// [`Argsort::check`] must have passed. `src` must be readable as `rows * len` elements of `dtype`, `dst` writable as `rows * take`, both aligned and
    /// apart; `scratch` must be aligned for i64 and as large as [`Argsort::scratch_bytes`] says.
    pub unsafe fn run(&self, dtype: DType, chunk: usize, src: *const u8, dst: *mut i64, scratch: &mut [u8]) {
        // SAFETY: passed on from the caller.
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
                DType::I32 => self.sort(chunk, src.cast::<i32>(), dst, scratch, i32::cmp),
                DType::I64 => self.sort(chunk, src.cast::<i64>(), dst, scratch, i64::cmp),
                DType::U8 | DType::Bool => self.sort(chunk, src, dst, scratch, u8::cmp),
            }
        }
    }

    /// # Safety
    /// As for [`Argsort::run`].
    unsafe fn sort<T>(
        &self,
        chunk: usize,
        src: *const T,
        dst: *mut i64,
        scratch: &mut [u8],
        compare: impl Fn(&T, &T) -> Ordering,
    ) {
        let Argsort { rows, len, take, descending } = *self;
        // SAFETY: the scratch is large enough and aligned, as the caller vouches.
        let places = unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<i64>(), len) };
        for row in chunk * self.group()..((chunk + 1) * self.group()).min(rows) {
            // SAFETY: a row of the source, and its row of the output.
            let (values, out) = unsafe {
                (
                    std::slice::from_raw_parts(src.add(row * len), len),
                    std::slice::from_raw_parts_mut(dst.add(row * take), take),
                )
            };
            places.iter_mut().enumerate().for_each(|(i, p)| *p = i as i64);
            let before = |a: &i64, b: &i64| {
                let order = compare(&values[*a as usize], &values[*b as usize]);
                (if descending { order.reverse() } else { order }).then(a.cmp(b))
            };
            if 0 < take && take < len {
                places.select_nth_unstable_by(take - 1, before);
            }
            places[..take].sort_unstable_by(before);
            out.copy_from_slice(&places[..take]);
        }
    }
}
