//! An allocator that measures peak memory use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system allocator, with a count of live bytes and their peak. Install it as the
/// `#[global_allocator]` of a test binary.
#[derive(Debug, Default)]
pub struct PeakAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl PeakAllocator {
    /// Creates the allocator.
    pub const fn new() -> PeakAllocator {
        PeakAllocator { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Runs `work` and returns its result with its peak memory use: the largest number of live
    /// bytes during the call, minus those before it.
    ///
    /// Allocations of all threads count, so only one measurement may run at a time.
    pub fn measure<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        let before = self.live.load(Ordering::Relaxed);
        self.peak.store(before, Ordering::Relaxed);
        let result = work();
        (result, self.peak.load(Ordering::Relaxed).saturating_sub(before))
    }
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = self.live.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        self.peak.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_live_bytes_beyond_those_before() {
        let allocator = PeakAllocator::new();
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        // SAFETY: the layout is not empty.
        let alloc = |bytes| unsafe { allocator.alloc(layout(bytes)) };
        // SAFETY: each block comes from `alloc` with the same number of bytes and is freed once.
        let free = |at, bytes| unsafe { allocator.dealloc(at, layout(bytes)) };
        let before = alloc(64);
        let ((), peak) = allocator.measure(|| {
            let (a, b) = (alloc(1000), alloc(500));
            free(a, 1000);
            let c = alloc(200);
            free(b, 500);
            free(c, 200);
        });
        assert_eq!(peak, 1500);
        assert_eq!(allocator.measure(|| ()).1, 0, "an earlier peak does not count");
        free(before, 64);
    }
}
