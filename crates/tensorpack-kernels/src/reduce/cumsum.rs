//! Running sums.

use crate::Isa;
use crate::partition::part;
use crate::scalar::Addend;
use crate::simd::per_isa::per_isa;
use tensorpack_tensor::DType;

/// Elements of one chunk, more or less.
const CHUNK: usize = 32 * 1024;

/// Columns that are summed together, at most.
const COLUMNS: usize = 1024;

/// Running sums along the middle dimension of dense `[outer, len, inner]`. Sums of f32 accumulate
/// in f64 and are rounded when stored, so the error does not grow with the length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cumsum {
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

impl Cumsum {
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
    /// [`Cumsum::check`] must have passed. `src` must be readable and `dst` writable in full, aligned for the type, the
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
    /// As for [`Cumsum::run`].
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
        // SAFETY: a row of these columns, in the input and in the output, which lie apart.
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
