//! Cumulative sums.

use crate::Isa;
use crate::partition::part;
use crate::scalar::Addend;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::DType;

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// Maximum number of columns summed together.
const COLUMNS: usize = 1024;

/// Cumulative sums along the middle dimension of dense `[outer, len, inner]`. Sums of f32
/// accumulate in f64 and are rounded when stored, so the error does not grow with the length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "Cumulate")]
pub struct Cumsum {
    /// Product of the sizes before the summed dimension.
    pub outer: usize,
    /// Size of the summed dimension.
    pub len: usize,
    /// Product of the sizes after the summed dimension.
    pub inner: usize,
    /// Whether each sum excludes its own element.
    pub exclusive: bool,
    /// Whether to sum from the end.
    pub reverse: bool,
}

impl Cumsum {
    /// Returns the number of column blocks.
    fn col_blocks(&self) -> usize {
        self.inner.div_ceil(COLUMNS).max(1)
    }

    /// Returns the number of column blocks in a chunk.
    fn group(&self) -> usize {
        (CHUNK / (self.len * (self.inner / self.col_blocks())).max(1)).max(1)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        if self.len == 0 || self.inner == 0 {
            return 0;
        }
        (self.outer * self.col_blocks()).div_ceil(self.group())
    }

    /// Runs one chunk. Supports f32, f64, i32 and i64.
    ///
    /// # Safety
    /// [`Cumsum::check`] must have passed. `src` must be readable and `dst` writable in full; both
    /// must be aligned for the type and must not overlap. The CPU must support `isa`.
    pub unsafe fn run(&self, isa: Isa, dtype: DType, chunk: usize, src: *const u8, dst: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match dtype {
                DType::F32 => self.chunk::<f32>(isa, chunk, src.cast(), dst.cast()),
                DType::F64 => self.chunk::<f64>(isa, chunk, src.cast(), dst.cast()),
                DType::I32 => self.chunk::<i32>(isa, chunk, src.cast(), dst.cast()),
                DType::I64 => self.chunk::<i64>(isa, chunk, src.cast(), dst.cast()),
                other => panic!("cumulative sums support f32, f64, i32 and i64, not {other}"),
            }
        }
    }

    /// # Safety
    /// Same as [`Cumsum::run`].
    unsafe fn chunk<T: Addend>(&self, isa: Isa, chunk: usize, src: *const T, dst: *mut T) {
        let (col_blocks, group) = (self.col_blocks(), self.group());
        for item in chunk * group..((chunk + 1) * group).min(self.outer * col_blocks) {
            let columns = part(self.inner, col_blocks, item % col_blocks);
            let at = item / col_blocks * self.len * self.inner + columns.start;
            // SAFETY: the columns of one outer index, which belong to this item alone.
            unsafe { sum_columns(isa, self, src.wrapping_add(at), dst.wrapping_add(at), columns.len()) };
        }
    }
}

per_isa! {
    /// # Safety
    /// `cols` columns of `sums.len` elements must be readable at `src` and writable at `dst`.
    unsafe fn sum_columns<T: Addend>(sums: &Cumsum, src: *const T, dst: *mut T, cols: usize) = sum_columns_body
}

#[inline(always)]
unsafe fn sum_columns_body<T: Addend, const FAST: bool>(
    sums: &Cumsum,
    src: *const T,
    dst: *mut T,
    cols: usize,
) {
    let &Cumsum { len, inner, exclusive, reverse, .. } = sums;
    let row = |k: usize| if reverse { (len - 1 - k) * inner } else { k * inner };
    if cols == 1 {
        let mut sum = T::Running::default();
        for k in 0..len {
            // SAFETY: an element of the column.
            unsafe {
                let with = (*src.add(row(k))).added_to(sum);
                *dst.add(row(k)) = T::rounded(if exclusive { sum } else { with });
                sum = with;
            }
        }
        return;
    }
    let mut sums = [T::Running::default(); COLUMNS];
    let sums = &mut sums[..cols];
    for k in 0..len {
        // SAFETY: a row of these columns, in the input and in the output, which do not overlap.
        let (from, to) = unsafe {
            let from = std::slice::from_raw_parts(src.add(row(k)), cols);
            (from, std::slice::from_raw_parts_mut(dst.add(row(k)), cols))
        };
        let each = to.iter_mut().zip(&mut *sums).zip(from);
        match exclusive {
            true => each.for_each(|((t, s), f)| (*t, *s) = (T::rounded(*s), f.added_to(*s))),
            false => each.for_each(|((t, s), f)| {
                *s = f.added_to(*s);
                *t = T::rounded(*s);
            }),
        }
    }
}
