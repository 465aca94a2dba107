//! The panel layout of a matrix: blocks of columns, each stored row after row.
//!
//! Products of few rows read a right operand in panels without packing it first. A matrix `[k, n]`
//! in panels takes `[ceil(n / PANEL), k, PANEL]` elements, with zeros past the last column; bf16,
//! which is multiplied in pairs, takes `[ceil(n / PANEL), k / 2, PANEL, 2]`. In the IR it is an
//! ordinary matrix; only the CPU engine knows which buffers are stored this way
//! ([`Compilation::panels`](super::pipeline::Compilation)).

use crate::kir::{Buffer, View};
use tensorpack_kernels::{Copy, Isa, MatMul, Pad};
use tensorpack_tensor::{DType, Element, Error, HostTensor, Result, bf16};

const PANEL: usize = MatMul::PANEL;

/// Returns the number of elements of a matrix in panels.
pub(super) fn len(buffer: &Buffer) -> usize {
    match buffer.sizes[..] {
        [k, n] => k * n.next_multiple_of(PANEL),
        _ => buffer.len(),
    }
}

/// A copy of a matrix view into panels.
#[derive(Debug)]
pub(super) struct PackPanels {
    /// The panels that are full.
    full: Copy,
    /// The last panel, filled up with zeros.
    last: Option<Last>,
}

/// The last panel, with the byte offsets at which it starts.
#[derive(Debug)]
struct Last {
    pad: Pad,
    src: isize,
    dst: usize,
}

impl PackPanels {
    /// Prepares a copy of a matrix with any strides, of f32 or, with an even number of rows, bf16.
    pub(super) fn new(src: &View) -> PackPanels {
        let ([k, n], [row, column]) = ([src.sizes[0], src.sizes[1]], [src.strides[0], src.strides[1]]);
        let (size, panel, stored) = (src.dtype.size(), PANEL as isize, (PANEL * k) as isize);
        // Rows that are stored together, element by element.
        let joined = joined_rows(src.dtype);
        let (step, groups) = (joined as isize, k / joined);
        let full = Copy::new(
            &[n / PANEL, groups, PANEL, joined],
            size,
            &[panel * column, step * row, column, row],
            &[stored, step * panel, step, 1],
        );
        let (before, rest) = (n - n % PANEL, n % PANEL);
        let last = (rest > 0).then(|| Last {
            pad: Pad::new(
                &[groups, rest, joined],
                size,
                &[step * row, column, row],
                &[0; 3],
                &[0, PANEL - rest, 0],
                &[0; 3],
            ),
            src: before as isize * column * size as isize,
            dst: before * k * size,
        });
        PackPanels { full, last }
    }

    /// Returns the number of chunks.
    pub(super) fn chunks(&self) -> usize {
        self.full.chunks() + self.last.as_ref().map_or(0, |last| last.pad.chunks())
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// The view's elements must be readable at `src`, and the panels writable at `dst`. The two
    /// must not overlap, and the CPU must support `isa`.
    pub(super) unsafe fn run(&self, isa: Isa, chunk: usize, src: *const u8, dst: *mut u8) {
        // SAFETY: the full panels and the last one are parts of the view and of the output, as the
        // caller guarantees.
        unsafe {
            match (chunk.checked_sub(self.full.chunks()), &self.last) {
                (Some(chunk), Some(last)) => {
                    last.pad.run(isa, chunk, src.wrapping_offset(last.src), dst.add(last.dst));
                }
                _ => self.full.run(isa, chunk, src, dst),
            }
        }
    }
}

/// Returns the number of rows whose elements are stored next to each other: bf16 is multiplied in
/// pairs.
fn joined_rows(dtype: DType) -> usize {
    if dtype == DType::Bf16 { 2 } else { 1 }
}

/// Returns a constant matrix in panels.
pub(super) fn packed(matrix: &HostTensor) -> Result<HostTensor> {
    match matrix.dtype() {
        DType::Bf16 => packed_elements::<bf16>(matrix),
        _ => packed_elements::<f32>(matrix),
    }
}

fn packed_elements<T: Element>(matrix: &HostTensor) -> Result<HostTensor> {
    let &[k, n] = matrix.sizes() else {
        return Err(Error::shape(format!("only a matrix can be stored in panels, not {matrix:?}")));
    };
    let elements = matrix.as_slice::<T>()?;
    let joined = joined_rows(matrix.dtype());
    let mut packed = vec![T::default(); k * n.next_multiple_of(PANEL)];
    for (row, elements) in elements.chunks_exact(n.max(1)).enumerate() {
        for (column, &x) in elements.iter().enumerate() {
            let group = column / PANEL * (k / joined) + row / joined;
            packed[(group * PANEL + column % PANEL) * joined + row % joined] = x;
        }
    }
    HostTensor::new([n.div_ceil(PANEL), k, PANEL], packed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kir::BufferId;
    use tensorpack_tensor::DType;

    /// The panels of `[k, n]` elements that are stored with these strides.
    fn panels(elements: &[f32], sizes: [usize; 2], strides: [isize; 2]) -> Vec<f32> {
        let view = View { strides: strides.to_vec(), ..View::dense(BufferId(0), DType::F32, &sizes) };
        let pack = PackPanels::new(&view);
        let mut out = vec![f32::NAN; sizes[0] * sizes[1].next_multiple_of(PANEL)];
        for chunk in 0..pack.chunks() {
            // SAFETY: the strides stay inside `elements`, and `out` has the length of the panels.
            unsafe { pack.run(Isa::detect(), chunk, elements.as_ptr().cast(), out.as_mut_ptr().cast()) };
        }
        out
    }

    #[test]
    fn panels_of_a_view_are_those_of_its_elements() {
        for (k, n) in [(3, 1), (5, 32), (4, 33), (7, 95), (1, 64)] {
            let elements: Vec<f32> = (0..k * n).map(|i| i as f32 + 1.0).collect();
            let transposed: Vec<f32> = (0..k * n).map(|i| elements[i % k * n + i / k]).collect();
            let matrix = HostTensor::new([k, n], elements.clone()).unwrap();
            let want = packed(&matrix).unwrap();
            let want = want.as_slice::<f32>().unwrap();
            assert_eq!(panels(&elements, [k, n], [n as isize, 1]), want, "{k} x {n}");
            assert_eq!(panels(&transposed, [k, n], [1, k as isize]), want, "{k} x {n}, transposed");
            assert_eq!(want.iter().filter(|x| **x != 0.0).count(), k * n, "{k} x {n}");
        }
    }
}
