//! Padding with zeros at the edges and between elements.

use crate::Isa;
use std::ops::Range;

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// A padded dimension.
#[derive(Clone, Copy, Debug)]
struct Axis {
    len: usize,
    stride: isize,
    low: usize,
    high: usize,
    interior: usize,
}

impl Axis {
    fn out(&self) -> usize {
        self.low + self.len + self.len.saturating_sub(1) * self.interior + self.high
    }

    fn is_plain(&self) -> bool {
        self.low == 0 && self.high == 0 && (self.interior == 0 || self.len <= 1)
    }

    /// Returns the input element at output position `at`, or `None` in the padding.
    fn element(&self, at: usize) -> Option<usize> {
        let inside = at.checked_sub(self.low)?;
        let step = self.interior + 1;
        (inside % step == 0 && inside / step < self.len).then_some(inside / step)
    }
}

/// A copy with zeros around and between the elements. The output is dense, and every element of it
/// is written.
#[derive(Clone, Debug)]
pub struct Pad {
    size: usize,
    out_dims: Vec<usize>,
    outer: Vec<Axis>,
    inner: Axis,
    /// Rows of the innermost dimension per chunk.
    group: usize,
}

impl Pad {
    /// Prepares a padding of `dims` with elements of 1, 2, 4 or 8 bytes: along each dimension `low`
    /// zeros before the first element, `high` after the last, and `interior` between neighbors.
    /// Strides are in elements.
    pub fn new(
        dims: &[usize],
        element_size: usize,
        src_strides: &[isize],
        low: &[usize],
        high: &[usize],
        interior: &[usize],
    ) -> Pad {
        assert!(
            matches!(element_size, 1 | 2 | 4 | 8),
            "elements have 1, 2, 4 or 8 bytes, not {element_size}"
        );
        let axes: Vec<Axis> = (0..dims.len())
            .map(|d| Axis {
                len: dims[d],
                stride: src_strides[d],
                low: low[d],
                high: high[d],
                interior: interior[d],
            })
            .collect();
        let out_dims: Vec<usize> = axes.iter().map(Axis::out).collect();
        if out_dims.contains(&0) {
            // Nothing is written, and the other sizes may be arbitrarily large.
            let inner = Axis { len: 0, stride: 0, low: 0, high: 0, interior: 0 };
            return Pad { size: element_size, out_dims, outer: Vec::new(), inner, group: 1 };
        }
        // A dimension without padding is merged into the one before it.
        let mut merged: Vec<Axis> = Vec::new();
        for axis in axes {
            let n = axis.len;
            match merged.last_mut() {
                _ if n == 1 && axis.is_plain() => {}
                Some(last)
                    if axis.is_plain()
                        && last.interior == 0
                        && last.stride == axis.stride.wrapping_mul(n as isize) =>
                {
                    let (len, low, high) = (last.len * n, last.low * n, last.high * n);
                    *last = Axis { len, stride: axis.stride, low, high, interior: 0 };
                }
                _ => merged.push(axis),
            }
        }
        let inner = merged.pop().unwrap_or(Axis { len: 1, stride: 1, low: 0, high: 0, interior: 0 });
        let group = (CHUNK / inner.out().max(1)).max(1);
        Pad { size: element_size, out_dims, outer: merged, inner, group }
    }

    /// Returns the sizes of the output.
    pub fn out_dims(&self) -> &[usize] {
        &self.out_dims
    }

    fn rows(&self) -> usize {
        let rows: usize = self.outer.iter().map(Axis::out).product();
        if self.inner.out() == 0 { 0 } else { rows }
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.rows().div_ceil(self.group)
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// All elements must be readable at `src` and the whole output writable at `dst`, aligned for
    /// their size, and the two must not overlap. The CPU must support `isa`.
    pub unsafe fn run(&self, isa: Isa, chunk: usize, src: *const u8, dst: *mut u8) {
        // The standard library copies and fills, and picks the best instructions itself.
        let _ = isa;
        let rows = chunk * self.group..((chunk + 1) * self.group).min(self.rows());
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.size {
                1 => self.rows_of::<u8>(rows, src.cast(), dst.cast()),
                2 => self.rows_of::<u16>(rows, src.cast(), dst.cast()),
                4 => self.rows_of::<u32>(rows, src.cast(), dst.cast()),
                _ => self.rows_of::<u64>(rows, src.cast(), dst.cast()),
            }
        }
    }

    /// # Safety
    /// Same as [`Pad::run`].
    unsafe fn rows_of<T: Copy + Default>(&self, rows: Range<usize>, src: *const T, dst: *mut T) {
        let Axis { len, stride, low, interior, .. } = self.inner;
        let width = self.inner.out();
        for row in rows {
            // SAFETY: a row of the output, which this chunk owns.
            let out = unsafe { std::slice::from_raw_parts_mut(dst.add(row * width), width) };
            let (mut from, mut rest) = (Some(src), row);
            for axis in self.outer.iter().rev() {
                let at = axis.element(rest % axis.out());
                from = from.zip(at).map(|(p, i)| p.wrapping_offset(i as isize * axis.stride));
                rest /= axis.out();
            }
            let Some(from) = from else {
                out.fill(T::default());
                continue;
            };
            let (before, out) = out.split_at_mut(low);
            before.fill(T::default());
            if interior == 0 {
                let (inside, after) = out.split_at_mut(len);
                after.fill(T::default());
                if stride == 1 {
                    // SAFETY: a contiguous row of the source.
                    inside.copy_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
                    continue;
                }
            } else {
                out.fill(T::default());
            }
            for (i, x) in out.iter_mut().step_by(interior + 1).take(len).enumerate() {
                // SAFETY: an element of the source's row.
                *x = unsafe { *from.offset(i as isize * stride) };
            }
        }
    }
}
