//! The part of an image batch that a chunk of a convolution reads, padding included: a zero-padded
//! copy, or the images themselves if the chunk reads nothing beyond the edges. So the micro-kernel
//! needs no bounds checks.

use std::ops::Range;
use std::ptr;

/// A batch of images, dense `[images, height, width, channels]`.
#[derive(Clone, Copy)]
pub(crate) struct Images<T> {
    pub(crate) data: *const T,
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
}

/// A rectangle of pixels, which may extend beyond the edges on all sides.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) first: [isize; 2],
    pub(crate) size: [usize; 2],
}

/// A region of some images in memory; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct Window<T> {
    pub(crate) data: *const T,
    pub(crate) pixel: usize,
    pub(crate) row: usize,
    pub(crate) image: usize,
}

impl<T: Copy> Images<T> {
    /// Returns the region of the `images`, in place or copied to `copy`. With a nonzero `gap` it is
    /// always copied, with `gap` unused elements after each pixel.
    ///
    /// # Safety
    /// The images are valid, and `copy` is valid for all elements of the region in all images, gaps
    /// included.
    pub(crate) unsafe fn window(
        &self,
        images: Range<usize>,
        region: Region,
        gap: usize,
        copy: *mut T,
    ) -> Window<T> {
        let inside = |axis: usize| {
            region.first[axis] >= 0 && region.first[axis] as usize + region.size[axis] <= self.size[axis]
        };
        let row = self.size[1] * self.channels;
        let image = self.size[0] * row;
        let first = self.data.wrapping_add(images.start * image);
        if inside(0) && inside(1) && gap == 0 {
            let skip = region.first[0] as usize * row + region.first[1] as usize * self.channels;
            return Window { data: first.wrapping_add(skip), pixel: self.channels, row, image };
        }
        let pixel = self.channels + gap;
        let copy_row = region.size[1] * pixel;
        // The columns of a row: some before the image, some in it, the rest after it.
        let before = (region.first[1].min(0).unsigned_abs()).min(region.size[1]);
        let skip = region.first[1].max(0) as usize;
        let within = (region.size[1] - before).min(self.size[1].saturating_sub(skip));
        for i in 0..images.len() {
            for y in 0..region.size[0] {
                let to = copy.wrapping_add((i * region.size[0] + y) * copy_row);
                let from = region.first[0] + y as isize;
                // SAFETY: `to` is a row of the copy; the columns copied are inside both rows.
                unsafe {
                    if from < 0 || from as usize >= self.size[0] {
                        ptr::write_bytes(to, 0, copy_row);
                        continue;
                    }
                    ptr::write_bytes(to, 0, before * pixel);
                    ptr::write_bytes(
                        to.add((before + within) * pixel),
                        0,
                        copy_row - (before + within) * pixel,
                    );
                    if within == 0 {
                        continue;
                    }
                    let from = first.add(i * image + from as usize * row + skip * self.channels);
                    let to = to.add(before * pixel);
                    // Pixels without gaps are one contiguous run.
                    let (runs, len) =
                        if gap > 0 { (within, self.channels) } else { (1, within * self.channels) };
                    for run in 0..runs {
                        // Bytes, because bf16 pairs need not be aligned like f32.
                        let (from, to) = (from.add(run * len).cast::<u8>(), to.add(run * pixel).cast());
                        ptr::copy_nonoverlapping(from, to, len * size_of::<T>());
                    }
                }
            }
        }
        Window { data: copy, pixel, row: copy_row, image: region.size[0] * copy_row }
    }
}
