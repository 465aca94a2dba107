//! Strided copies: contiguous runs where both sides have them, blocked transposition where the two
//! sides are contiguous along different dimensions, and element by element otherwise.

use crate::Isa;
use crate::copy::transpose::transpose;
use std::ops::Range;

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// A dimension with its strides in source and destination.
#[derive(Clone, Copy, Debug)]
struct Axis {
    len: usize,
    src: isize,
    dst: isize,
}

/// The method for the two innermost dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// The last dimension is contiguous on both sides.
    Runs,
    /// The last dimension is contiguous in the destination, the one before it in the source.
    Transposed,
    /// Element by element.
    Strided,
}

/// `dst[i * dst_strides] = src[i * src_strides]` for every index `i`.
#[derive(Clone, Debug)]
pub struct Copy {
    size: usize,
    outer: Vec<Axis>,
    /// The two innermost dimensions.
    axes: [Axis; 2],
    method: Method,
    /// Which of the two is split into work items, and the length of each piece.
    split: usize,
    piece: usize,
    /// Work items per chunk.
    group: usize,
}

impl Copy {
    /// Prepares a copy over `dims` of elements of 1, 2, 4 or 8 bytes; strides are in elements.
    pub fn new(dims: &[usize], element_size: usize, src_strides: &[isize], dst_strides: &[isize]) -> Copy {
        assert!(
            matches!(element_size, 1 | 2 | 4 | 8),
            "elements have 1, 2, 4 or 8 bytes, not {element_size}"
        );
        assert!(
            dims.len() == src_strides.len() && dims.len() == dst_strides.len(),
            "strides for each dimension"
        );
        if dims.contains(&0) {
            // Nothing is copied, and the other sizes may be arbitrarily large.
            let axes = [Axis { len: 0, src: 0, dst: 0 }; 2];
            let outer = Vec::new();
            return Copy {
                size: element_size,
                outer,
                axes,
                method: Method::Strided,
                split: 0,
                piece: 1,
                group: 1,
            };
        }
        let axes = (0..dims.len()).map(|d| Axis { len: dims[d], src: src_strides[d], dst: dst_strides[d] });
        let mut axes: Vec<Axis> = axes.filter(|a| a.len != 1).collect();
        // In the order of the destination, because out-of-order writes cost most.
        axes.sort_by_key(|a| std::cmp::Reverse(a.dst.unsigned_abs()));
        let mut merged: Vec<Axis> = Vec::new();
        for axis in axes {
            let n = axis.len as isize;
            match merged.last_mut() {
                Some(last) if last.src == axis.src * n && last.dst == axis.dst * n => {
                    *last = Axis { len: last.len * axis.len, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        let one = Axis { len: 1, src: 0, dst: 0 };
        let last = merged.pop().unwrap_or(Axis { len: 1, src: 1, dst: 1 });
        let along_src = merged.iter().rposition(|a| a.src == 1);
        let (method, before) = match (last, along_src) {
            (Axis { src: 1, dst: 1, .. }, _) => (Method::Runs, merged.pop().unwrap_or(one)),
            (Axis { dst: 1, .. }, Some(at)) => (Method::Transposed, merged.remove(at)),
            _ => (Method::Strided, merged.pop().unwrap_or(one)),
        };
        // Split the last dimension only if the one before it is too short.
        let split = usize::from(method != Method::Transposed && before.len < 8 && last.len > CHUNK);
        let other = [last.len, before.len][split];
        let piece = (CHUNK / other.max(1)).max(1);
        // A band of transposed blocks needs a few blocks to pay off.
        let piece = if method == Method::Transposed { piece.next_multiple_of(64) } else { piece };
        let axes = [before, last];
        let item = piece.min(axes[split].len) * other;
        Copy {
            size: element_size,
            outer: merged,
            axes,
            method,
            split,
            piece,
            group: (CHUNK / item.max(1)).max(1),
        }
    }

    fn items(&self) -> usize {
        let outer: usize = self.outer.iter().map(|a| a.len).product();
        let empty = self.axes[1 - self.split].len == 0;
        if empty { 0 } else { outer * self.axes[self.split].len.div_ceil(self.piece) }
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.items().div_ceil(self.group)
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// All these elements must be readable at `src` and writable at `dst`, aligned for their size.
    /// The two must not overlap, and different indices must map to different elements of `dst`. The
    /// CPU must support `isa`.
    pub unsafe fn run(&self, isa: Isa, chunk: usize, src: *const u8, dst: *mut u8) {
        let items = chunk * self.group..((chunk + 1) * self.group).min(self.items());
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.size {
                1 => self.items_of::<u8>(isa, items, src.cast(), dst.cast()),
                2 => self.items_of::<u16>(isa, items, src.cast(), dst.cast()),
                4 => self.items_of::<u32>(isa, items, src.cast(), dst.cast()),
                _ => self.items_of::<u64>(isa, items, src.cast(), dst.cast()),
            }
        }
    }

    /// # Safety
    /// Same as [`Copy::run`].
    unsafe fn items_of<T: std::marker::Copy>(
        &self,
        isa: Isa,
        items: Range<usize>,
        src: *const T,
        dst: *mut T,
    ) {
        let pieces = self.axes[self.split].len.div_ceil(self.piece);
        for item in items {
            let (mut s, mut d, mut rest) = (src, dst, item / pieces);
            for axis in self.outer.iter().rev() {
                let i = (rest % axis.len) as isize;
                (s, d) = (s.wrapping_offset(i * axis.src), d.wrapping_offset(i * axis.dst));
                rest /= axis.len;
            }
            let mut axes = self.axes;
            let start = item % pieces * self.piece;
            let axis = &mut axes[self.split];
            axis.len = self.piece.min(axis.len - start);
            let start = start as isize;
            (s, d) = (s.wrapping_offset(start * axis.src), d.wrapping_offset(start * axis.dst));
            let [a, b] = axes;
            // SAFETY: guaranteed by the caller; the pieces stay within the dimensions.
            unsafe {
                match self.method {
                    Method::Transposed => transpose(isa, s, b.src, d, a.dst, [a.len, b.len]),
                    method => rows(method, s, d, a, b),
                }
            }
        }
    }
}

/// # Safety
/// Same as [`Copy::run`].
unsafe fn rows<T: std::marker::Copy>(method: Method, src: *const T, dst: *mut T, a: Axis, b: Axis) {
    for i in 0..a.len as isize {
        let (s, d) = (src.wrapping_offset(i * a.src), dst.wrapping_offset(i * a.dst));
        // SAFETY: guaranteed by the caller.
        unsafe {
            match method {
                Method::Runs => std::ptr::copy_nonoverlapping(s, d, b.len),
                _ if b.src == 0 && b.dst == 1 => std::slice::from_raw_parts_mut(d, b.len).fill(*s),
                _ => (0..b.len as isize).for_each(|j| *d.offset(j * b.dst) = *s.offset(j * b.src)),
            }
        }
    }
}
