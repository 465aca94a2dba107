//! Prefetches the pixels that Winograd convolutions read or write next, while they multiply.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

/// Elements of a cache line.
const LINE: usize = 16;

/// Prefetches pixels that come from far away, in steps, because all at once would delay other loads.
pub(crate) struct Prefetcher {
    next: *const f32,
    left: usize,
    at_once: usize,
    pixel: usize,
    channels: usize,
}

impl Prefetcher {
    /// Returns a prefetcher that takes `steps` steps for some channels of some pixels of `data`, which
    /// has `pixel` channels.
    pub(crate) fn new(
        data: *const f32,
        pixels: Range<usize>,
        pixel: usize,
        channels: Range<usize>,
        steps: usize,
    ) -> Prefetcher {
        Prefetcher {
            next: data.wrapping_add(pixels.start * pixel + channels.start),
            left: pixels.len(),
            at_once: pixels.len().div_ceil(steps),
            pixel,
            channels: channels.len(),
        }
    }

    /// Takes the next step.
    pub(crate) fn step(&mut self) {
        let here = self.at_once.min(self.left);
        self.left -= here;
        for _ in 0..here {
            for channel in (0..self.channels).step_by(LINE) {
                // SAFETY: prefetching reads nothing, and does not fail.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.next.wrapping_add(channel).cast()) }
            }
            self.next = self.next.wrapping_add(self.pixel);
        }
    }
}
