//! Running sums.

use crate::Isa;
use crate::partition::part;
use crate::scalar::Addend;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::DType;

/// Elements of one chunk, more or less.
const CHUNK: usize = 32 * 1024;

/// Columns that are summed together.
const COLUMNS: usize = 1024;

/// Sums along the middle dimension of dense `[outer, len, inner]`, each of all elements up to its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cumulate {
    /// Indices before the dimension.
    pub outer: usize,
    /// The dimension's size.
    pub len: usize,
    /// Indices after it.
    pub inner: usize,
    /// Without the element in its own place.
    pub exclusive: bool,
    /// From the end.
    pub reverse: bool,
}

impl Cumulate {
    fn pieces(&self) -> usize {
        self.inner.div_ceil(COLUMNS).max(1)
    }

    /// Columns of sums in a chunk.
    fn group(&self) -> usize {
        (CHUNK / (self.len * (self.inner / self.pieces())).max(1)).max(1)
    }

    /// Into how many chunks the work is cut.
    pub fn chunks(&self) -> usize {
        if self.len == 0 || self.inner == 0 {
            return 0;
        }
        (self.outer * self.pieces()).div_ceil(self.group())
    }

    /// Does one chunk, of f32, f64, i32 or i64.
    ///
    /// # Safety
    /// [`Cumulate::check`] must have passed. `src` must be readable and `dst` writable in full, aligned for the type, the
    /// two apart. The machine must have the instructions of `isa`.
    pub unsafe fn run(&self, isa: Isa, dtype: DType, chunk: usize, src: *const u8, dst: *mut u8) {
        // SAFETY: passed on from the caller.
        unsafe {
            match dtype {
                DType::F32 => self.chunk::<f32>(isa, chunk, src.cast(), dst.cast()),
                DType::F64 => self.chunk::<f64>(isa, chunk, src.cast(), dst.cast()),
                DType::I32 => self.chunk::<i32>(isa, chunk, src.cast(), dst.cast()),
                DType::I64 => self.chunk::<i64>(isa, chunk, src.cast(), dst.cast()),
                other => panic!("running sums are of f32, f64, i32 or i64, not {other}"),
            }
        }
    }

    /// # Safety
    /// As for [`Cumulate::run`].
    unsafe fn chunk<T: Addend>(&self, isa: Isa, chunk: usize, src: *const T, dst: *mut T) {
        let (pieces, group) = (self.pieces(), self.group());
        for item in chunk * group..((chunk + 1) * group).min(self.outer * pieces) {
            let columns = part(self.inner, pieces, item % pieces);
            let at = item / pieces * self.len * self.inner + columns.start;
            // SAFETY: the columns of one outer index, which are this item's alone.
            unsafe { sum_columns(isa, self, src.wrapping_add(at), dst.wrapping_add(at), columns.len()) };
        }
    }
}

per_isa! {
    /// # Safety
    /// `cols` columns of the sums' length must be readable at `src` and writable at `dst`.
    unsafe fn sum_columns<T: Addend>(sums: &Cumulate, src: *const T, dst: *mut T, cols: usize) = sum_columns_body
}

#[inline(always)]
unsafe fn sum_columns_body<T: Addend, const FAST: bool>(
    sums: &Cumulate,
    src: *const T,
    dst: *mut T,
    cols: usize,
) {
    let &Cumulate { len, inner, exclusive, reverse, .. } = sums;
    let row = |k: usize| if reverse { (len - 1 - k) * inner } else { k * inner };
    if cols == 1 {
        let mut sum = T::default();
        for k in 0..len {
            // SAFETY: an element of the column.
            unsafe {
                let with = sum.plus(*src.add(row(k)));
                *dst.add(row(k)) = if exclusive { sum } else { with };
                sum = with;
            }
        }
        return;
    }
    for k in 0..len {
        // SAFETY: a row of these columns; the row before it in the output is another.
        let to = unsafe { std::slice::from_raw_parts_mut(dst.add(row(k)), cols) };
        // An exclusive sum lags one row behind.
        let from = match (k, exclusive) {
            (0, true) => None,
            (_, true) => Some(row(k - 1)),
            (_, false) => Some(row(k)),
        };
        // SAFETY: as above.
        let from = from.map(|at| unsafe { std::slice::from_raw_parts(src.add(at), cols) });
        match (k, from) {
            (_, None) => to.fill(T::default()),
            (0, Some(from)) => to.copy_from_slice(from),
            (_, Some(from)) => {
                // SAFETY: the row written before this one.
                let before = unsafe { std::slice::from_raw_parts(dst.add(row(k - 1)), cols) };
                for ((t, b), f) in to.iter_mut().zip(before).zip(from) {
                    *t = b.plus(*f);
                }
            }
        }
    }
}
