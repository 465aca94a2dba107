//! Greedy non-maximum suppression.

/// For every list of `len` boxes in order of preference, which boxes are kept: those that no kept box
/// before them suppresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nms {
    /// Number of lists.
    pub rows: usize,
    /// Boxes per list.
    pub len: usize,
}

impl Nms {
    /// Returns the number of chunks: one for every list.
    pub fn chunks(&self) -> usize {
        if self.len == 0 { 0 } else { self.rows }
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// [`Nms::check`] must have passed, and `chunk` must be less than [`Nms::chunks`]. `src` must be
    /// readable as `rows * len * len` booleans, where element `[row, i, j]` says whether box `i`
    /// suppresses box `j`, and `dst` writable as `rows * len`; they must not overlap.
    pub unsafe fn run(&self, chunk: usize, src: *const u8, dst: *mut u8) {
        let len = self.len;
        // SAFETY: the list's matrix, and its row of the output.
        let (suppresses, kept) = unsafe {
            (
                std::slice::from_raw_parts(src.add(chunk * len * len), len * len),
                std::slice::from_raw_parts_mut(dst.add(chunk * len), len),
            )
        };
        kept.fill(1);
        for (i, row) in suppresses.chunks_exact(len).enumerate() {
            let (before, after) = kept.split_at_mut(i + 1);
            if before[i] != 0 {
                after.iter_mut().zip(&row[i + 1..]).for_each(|(kept, suppressed)| *kept &= suppressed ^ 1);
            }
        }
    }
}
