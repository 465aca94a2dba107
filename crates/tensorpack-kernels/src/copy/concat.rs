//! Several tensors written one behind the other.

use crate::{Copy, Isa};

/// Copies of several sources into one dense destination, side by side along one dimension.
#[derive(Clone, Debug)]
pub struct Concat {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    copy: Copy,
    /// Bytes from the destination's beginning to where this part begins.
    offset: usize,
    /// The number of the first chunk that is not this part's or an earlier one's.
    end: usize,
}

impl Concat {
    /// Prepares for sources with these dims and strides (in elements of 1, 2, 4 or 8 bytes), alike in all dims but `axis`.
    pub fn new(element_size: usize, axis: usize, sources: &[(&[usize], &[isize])]) -> Concat {
        let mut out = sources.first().map_or_else(Vec::new, |(dims, _)| dims.to_vec());
        if let Some(n) = out.get_mut(axis) {
            *n = sources.iter().map(|(dims, _)| dims[axis]).sum();
        }
        if out.contains(&0) {
            // Nothing is written, and the other sizes may be any.
            return Concat { parts: Vec::new() };
        }
        let mut strides = vec![1isize; out.len()];
        for d in (1..out.len()).rev() {
            strides[d - 1] = strides[d] * out[d].max(1) as isize;
        }
        let (mut ahead, mut end) = (0, 0);
        let parts = sources.iter().map(|&(dims, from)| {
            let copy = Copy::new(dims, element_size, from, &strides);
            let offset = ahead * strides[axis] as usize * element_size;
            ahead += dims[axis];
            end += copy.chunks();
            Part { copy, offset, end }
        });
        Concat { parts: parts.collect() }
    }

    /// Into how many chunks the work is cut.
    pub fn chunks(&self) -> usize {
        self.parts.last().map_or(0, |p| p.end)
    }

    /// Does one chunk.
    ///
    /// # Safety
    /// All elements of each source must be readable and the whole output writable at `dst`, aligned for their size,
    /// all apart from each other. The machine must have the instructions of `isa`.
    pub unsafe fn run(&self, isa: Isa, chunk: usize, sources: &[*const u8], dst: *mut u8) {
        let at = self.parts.partition_point(|p| p.end <= chunk);
        let before = at.checked_sub(1).map_or(0, |i| self.parts[i].end);
        let part = &self.parts[at];
        // SAFETY: passed on from the caller; each part has a place of its own in the output.
        unsafe { part.copy.run(isa, chunk - before, sources[at], dst.wrapping_add(part.offset)) }
    }
}
