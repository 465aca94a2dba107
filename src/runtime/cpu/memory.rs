//! Aligned, zeroed memory that kernels read and write through pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Alignment of every buffer: a cache line, and the widest vector.
pub(super) const ALIGN: usize = 64;

/// Rounds `bytes` up to whole cache lines.
pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// A block of memory.
#[derive(Debug)]
pub(super) struct Block {
    from: NonNull<u8>,
    layout: Layout,
    /// Bytes from `from` to the first aligned address.
    lead: usize,
}

// SAFETY: the block owns its memory as a Box would. The engine controls access: it hands out
// pointers only while it is locked.
unsafe impl Send for Block {}
// SAFETY: as above; a shared reference to a block only gives its address.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn zeroed(bytes: usize) -> Result<Block> {
        let too_large = || Error::new(ErrorKind::Memory, format!("{bytes} bytes could not be allocated"));
        // Aligned by hand: with a small alignment the allocator returns fresh pages, which are zero
        // already and take no memory before they are used.
        let room = bytes.checked_add(ALIGN).ok_or_else(too_large)?;
        let layout = Layout::from_size_align(room, 16).map_err(|_| too_large())?;
        // SAFETY: the layout's size is at least `ALIGN`, so it is not zero.
        let from = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(too_large)?;
        huge_pages(from.as_ptr(), room);
        Ok(Block { from, layout, lead: from.align_offset(ALIGN) })
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size() - ALIGN
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.from.as_ptr().wrapping_add(self.lead)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `zeroed` allocated it with this layout.
        unsafe { dealloc(self.from.as_ptr(), self.layout) }
    }
}

/// Requests huge pages, which some systems give only on request: a pass over the arena then has far
/// fewer TLB misses. A refusal is ignored.
fn huge_pages(from: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let lead = from.align_offset(PAGE);
        if bytes >= 4 << 20 {
            // SAFETY: the range lies inside memory just allocated, because `lead` is less than a
            // page, and the advice changes how it is mapped, not what it holds.
            unsafe {
                libc::madvise(from.wrapping_add(lead).cast(), bytes - lead - PAGE, libc::MADV_HUGEPAGE)
            };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (from, bytes);
}
