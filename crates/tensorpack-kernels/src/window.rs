//! The part of an image batch that a chunk of a convolution reads, padding included: a copy with zeros around the
//! edges, or the images themselves where nothing beyond the edges is read. The inner kernel then needs no bounds.

use std::ops::Range;
use std::ptr;

/// A batch of images, dense `[images, height, width, channels]`.
#[derive(Clone, Copy)]
pub(crate) struct Images {
    pub(crate) data: *const f32,
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
}

/// Pixels of the images from `first` on, which may lie beyond the edges on all sides.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) first: [isize; 2],
    pub(crate) size: [usize; 2],
}

/// A region of some images in memory; distances in elements.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) data: *const f32,
    pub(crate) row: usize,
    pub(crate) image: usize,
}

impl Images {
    /// The region of the `images`, in place or copied to `copy`.
    ///
    /// # Safety
    /// The images are valid, and `copy` is valid for all elements of the region in all images.
    pub(crate) unsafe fn window(&self, images: Range<usize>, region: Region, copy: *mut f32) -> Window {
        let inside = |axis: usize| {
            region.first[axis] >= 0 && region.first[axis] as usize + region.size[axis] <= self.size[axis]
        };
        let row = self.size[1] * self.channels;
        let image = self.size[0] * row;
        let first = self.data.wrapping_add(images.start * image);
        if inside(0) && inside(1) {
            let skip = region.first[0] as usize * row + region.first[1] as usize * self.channels;
            return Window { data: first.wrapping_add(skip), row, image };
        }
        let copy_row = region.size[1] * self.channels;
        // The columns of a row: some before the image, some in it, the rest after it.
        let before = (region.first[1].min(0).unsigned_abs()).min(region.size[1]);
        let skip = region.first[1].max(0) as usize;
        let within = (region.size[1] - before).min(self.size[1].saturating_sub(skip));
        let (before, skip, within) = (before * self.channels, skip * self.channels, within * self.channels);
        for i in 0..images.len() {
            for y in 0..region.size[0] {
                let to = copy.wrapping_add((i * region.size[0] + y) * copy_row);
                let from = region.first[0] + y as isize;
                // SAFETY: `to` is a row of the copy; what is read of the image's row is inside both.
                unsafe {
                    if from < 0 || from as usize >= self.size[0] {
                        ptr::write_bytes(to, 0, copy_row);
                        continue;
                    }
                    ptr::write_bytes(to, 0, before);
                    let from = first.add(i * image + from as usize * row);
                    if within > 0 {
                        ptr::copy_nonoverlapping(from.add(skip), to.add(before), within);
                    }
                    ptr::write_bytes(to.add(before + within), 0, copy_row - before - within);
                }
            }
        }
        Window { data: copy, row: copy_row, image: region.size[0] * copy_row }
    }
}
