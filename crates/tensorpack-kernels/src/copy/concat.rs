//! Concatenation of tensors along one dimension.

use crate::{Copy, Isa};

/// Concatenates several sources into one dense destination along one dimension.
#[derive(Clone, Debug)]
pub struct Concat {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    copy: Copy,
    /// Offset of this part in the destination, in bytes.
    offset: usize,
    /// End of this part's range of chunks.
    end: usize,
}

impl Concat {
    /// Prepares a concatenation of sources with these sizes and strides, in elements of 1, 2, 4 or
    /// 8 bytes. The sizes must be equal in all dimensions but `axis`.
    pub fn new(element_size: usize, axis: usize, sources: &[(&[usize], &[isize])]) -> Concat {
        let mut out = sources.first().map_or_else(Vec::new, |(dims, _)| dims.to_vec());
        if let Some(n) = out.get_mut(axis) {
            *n = sources.iter().map(|(dims, _)| dims[axis]).sum();
        }
        if out.contains(&0) {
            // Nothing is written, and the other sizes may be arbitrarily large.
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

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.parts.last().map_or(0, |p| p.end)
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// All elements of each source must be readable and the whole output writable at `dst`, aligned
    /// for their size, and none may overlap. The CPU must support `isa`.
    pub unsafe fn run(&self, isa: Isa, chunk: usize, sources: &[*const u8], dst: *mut u8) {
        let at = self.parts.partition_point(|p| p.end <= chunk);
        let before = at.checked_sub(1).map_or(0, |i| self.parts[i].end);
        let part = &self.parts[at];
        // SAFETY: guaranteed by the caller; each part has its own region of the output.
        unsafe { part.copy.run(isa, chunk - before, sources[at], dst.wrapping_add(part.offset)) }
    }
}
