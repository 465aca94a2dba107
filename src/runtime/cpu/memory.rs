//! Aligned, zeroed memory that kernels read and write through pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// What every buffer begins at a multiple of: a cache line, and the widest vector.
pub(super) const ALIGN: usize = 64;

/// `bytes` rounded up to whole cache lines.
pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// A block of memory.
#[derive(Debug)]
pub(super) struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block owns its memory as a Box would; who may touch it when is decided by the engine, which hands out
// pointers only while it is locked.
unsafe impl Send for Block {}

impl Block {
    pub(super) fn zeroed(bytes: usize) -> Result<Block> {
        let too_large = || Error::new(ErrorKind::Memory, format!("{bytes} bytes could not be allocated"));
        let layout = Layout::from_size_align(bytes.max(ALIGN), ALIGN).map_err(|_| too_large())?;
        // SAFETY: the layout's size is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(too_large)?;
        Ok(Block { at, layout })
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}
