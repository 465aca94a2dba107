//! Memory that a request owns while MPI reads or writes it.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// The alignment of a [`Buffer`], in bytes: a cache line.
const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Bytes for a collective, aligned to 64 so that they can be viewed as any element type. A request
/// owns its buffers until it is complete, and then gives them back, so a training step allocates
/// nothing.
#[derive(Clone)]
pub struct Buffer {
    /// At least one, so that two empty buffers have different addresses: MPICH rejects equal
    /// addresses for sending and receiving.
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// Creates a buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Buffer {
        Buffer { lines: vec![Line([0; LINE]); len.div_ceil(LINE).max(1)], len }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `zeroed` made the lines long enough, all bytes are initialized, and lines have no
        // padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the lines are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_distinct() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % LINE), (len, 0));
            buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
            assert_eq!(*buffer, (0..len).map(|i| i as u8).collect::<Vec<_>>());
            assert_eq!(*Buffer::from(&*buffer), *buffer);
        }
        let (a, b) = (Buffer::zeroed(0), Buffer::zeroed(0));
        assert_ne!(a.as_ptr(), b.as_ptr());
    }
}
