//! Cross-correlation of images: the form that a convolution's output and its input gradient share.
//! Each output pixel is a sum over taps, and along each axis taps and outputs move over the input
//! with constant strides.
//!
//! The input gradient of a convolution with stride `s` is `s` correlations along each axis: only
//! every `s`-th tap reaches a pixel, so the pixels fall into classes, each with its own taps. No
//! product has a factor known to be zero.

use std::ops::Range;

use crate::Block;
use crate::conv::conv2d::Conv2d;
use crate::partition;

/// One class of outputs along one axis: output `out_first + out_step * j` sums, over taps `t`,
/// input `stride * j + offset + dilation * t` times the filter at `tap_first + tap_step * t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) outs: usize,
    pub(crate) out_first: usize,
    pub(crate) out_step: usize,
    pub(crate) stride: usize,
    pub(crate) offset: isize,
    pub(crate) dilation: usize,
    pub(crate) taps: usize,
    tap_first: usize,
    tap_step: isize,
}

impl Axis {
    pub(crate) fn tap(&self, t: usize) -> usize {
        (self.tap_first as isize + self.tap_step * t as isize) as usize
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A convolution, or its input gradient, as a cross-correlation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correlation {
    pub(crate) conv: Conv2d,
    pub(crate) backward: bool,
}

/// The partition of the output into chunks: groups of images, bands of their rows, and blocks of
/// columns (output channels).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    pub(crate) groups: usize,
    pub(crate) bands: usize,
    pub(crate) col_blocks: usize,
}

impl Blocking {
    pub(crate) fn chunks(&self) -> usize {
        self.groups * self.bands * self.col_blocks
    }
}

/// The outputs that a chunk computes.
pub(crate) struct Part {
    pub(crate) images: Range<usize>,
    /// Outputs of each class along the first axis.
    pub(crate) band: Range<usize>,
    pub(crate) cols: Range<usize>,
}

/// Elements of the widest vector.
pub(crate) const LANES: usize = 16;
/// The most vectors in a panel of a filter that is multiplied as a matrix.
const MAX_VECTORS: usize = 4;

/// Returns the columns of every panel but the last of a matrix with `cols` columns: all panels have about
/// the same number of vectors, because one with a single vector takes as long as one with two.
pub(crate) fn panel_cols(cols: usize) -> usize {
    let vectors = cols.div_ceil(LANES);
    vectors.div_ceil(vectors.div_ceil(MAX_VECTORS)) * LANES
}

/// Columns packed by one chunk: a multiple of every panel width.
pub(crate) const PACK_COLS: usize = 32;
/// Maximum size of the window of a chunk: it should stay in a part of the L2 cache.
const WINDOW_BYTES: usize = 384 << 10;
/// With fewer pixels per class than this, packed weights are reused too rarely.
const MIN_PIXELS: usize = 64;
/// Enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;
/// Enough chunks of a partition that divides columns, which is not free.
const ENOUGH_WITH_COLUMNS: usize = 8;
/// With fewer chunks than this, blocks of columns are narrow.
const FEW_CHUNKS: usize = 4;
/// Fewest panels of a narrow block of columns, and of others: epilogues work row by row, and short
/// rows cost more.
const NARROW_PANELS: usize = 2;
const WIDE_PANELS: usize = 4;
/// A filter larger than this does not stay in the L2 cache.
const FAR_FILTER_BYTES: usize = 1 << 20;

impl Correlation {
    pub(crate) fn in_size(&self) -> [usize; 2] {
        if self.backward { self.conv.out_size } else { self.conv.in_size }
    }

    pub(crate) fn out_size(&self) -> [usize; 2] {
        if self.backward { self.conv.in_size } else { self.conv.out_size }
    }

    pub(crate) fn in_channels(&self) -> usize {
        if self.backward { self.conv.out_channels } else { self.conv.in_channels }
    }

    pub(crate) fn out_channels(&self) -> usize {
        if self.backward { self.conv.in_channels } else { self.conv.out_channels }
    }

    /// Returns the number of terms of the longest sum, which equals the total over all classes.
    pub(crate) fn depth(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1] * self.in_channels()
    }

    /// Returns the number of output classes of an axis.
    pub(crate) fn classes(&self, axis: usize) -> usize {
        if self.backward { self.conv.stride[axis].min(self.conv.in_size[axis]).max(1) } else { 1 }
    }

    pub(crate) fn axis(&self, axis: usize, class: usize) -> Axis {
        let c = &self.conv;
        let (kernel, stride, dilation) = (c.kernel[axis], c.stride[axis], c.dilation[axis]);
        let pad = c.pad_low[axis] as isize;
        if !self.backward {
            return Axis {
                outs: c.out_size[axis],
                out_first: 0,
                out_step: 1,
                stride,
                offset: -pad,
                dilation,
                taps: kernel,
                tap_first: 0,
                tap_step: 1,
            };
        }
        // Tap k takes output o to input s * o + d * k - pad. For inputs class + s * j this has
        // solutions only for every (s / g)-th tap, and from one of those to the next o decreases by
        // d / g.
        let g = gcd(stride, dilation);
        let (tap_step, dilation_out) = (stride / g, dilation / g);
        let reach = |k: usize| class as isize + pad - (dilation * k) as isize;
        let first = (0..kernel.min(tap_step)).find(|&k| reach(k) % stride as isize == 0);
        let (taps, last, offset) = first.map_or((0, 0, 0), |first| {
            let taps = (kernel - first).div_ceil(tap_step);
            let last = first + tap_step * (taps - 1);
            (taps, last, reach(last) / stride as isize)
        });
        Axis {
            outs: c.in_size[axis].saturating_sub(class).div_ceil(stride),
            out_first: class,
            out_step: stride,
            stride: 1,
            offset,
            dilation: dilation_out,
            taps,
            tap_first: last,
            tap_step: -(tap_step as isize),
        }
    }

    /// Returns the number of outputs of the largest class along an axis.
    pub(crate) fn steps(&self, axis: usize) -> usize {
        self.axis(axis, 0).outs
    }

    /// Returns the inputs that outputs `range` of all classes read along an axis: the first one and
    /// their number.
    pub(crate) fn reach(&self, axis: usize, range: Range<usize>) -> (isize, usize) {
        let (mut low, mut high) = (isize::MAX, isize::MIN);
        let mut stride = 1;
        for class in 0..self.classes(axis) {
            let a = self.axis(axis, class);
            if a.taps > 0 && a.outs > 0 {
                low = low.min(a.offset);
                high = high.max(a.offset + (a.dilation * (a.taps - 1)) as isize + 1);
                stride = a.stride;
            }
        }
        if low >= high || range.is_empty() {
            return (0, 0);
        }
        (low + (range.start * stride) as isize, (high - low) as usize + (range.len() - 1) * stride)
    }

    /// Returns the number of elements that a band of `rows` rows reads from one image.
    fn window_len(&self, rows: usize) -> usize {
        self.reach(0, 0..rows).1 * self.reach(1, 0..self.steps(1)).1 * self.in_channels()
    }

    /// Returns the rows of the largest band whose window fits.
    fn largest_band(&self) -> usize {
        partition::largest_fitting(self.steps(0).max(1), |rows| {
            self.window_len(rows) * size_of::<f32>() <= WINDOW_BYTES
        })
    }

    /// Returns a partition into images and bands, with all columns in each chunk.
    pub(crate) fn blocking(&self) -> Blocking {
        let (batch, rows) = (self.conv.batch.max(1), self.steps(0).max(1));
        let bands = rows.div_ceil(self.largest_band()).max(rows.min(ENOUGH_CHUNKS.div_ceil(batch)));
        let pixels = (self.steps(0) * self.steps(1)).max(1);
        let few = (WINDOW_BYTES / size_of::<f32>() / self.window_len(rows).max(1)).max(1);
        let images = match bands {
            1 => MIN_PIXELS.div_ceil(pixels).min(batch.div_ceil(ENOUGH_CHUNKS)).min(few),
            _ => 1,
        };
        Blocking { groups: batch.div_ceil(images), bands, col_blocks: 1 }
    }

    /// Returns a partition that divides columns, too, if there are few pixels.
    pub(crate) fn blocking_with_columns(&self) -> Blocking {
        let mut blocking = self.blocking();
        let panels = self.out_channels().div_ceil(PACK_COLS).max(1);
        let columns_for = |others: usize| {
            let narrowest = if others < FEW_CHUNKS { NARROW_PANELS } else { WIDE_PANELS };
            ENOUGH_WITH_COLUMNS.div_ceil(others).min(panels / narrowest).max(1)
        };
        // Every band reads its columns' part of the filter. If that comes from far away, blocks of
        // columns replace bands.
        if self.conv.batch < ENOUGH_CHUNKS
            && self.depth() * self.out_channels() * size_of::<f32>() > FAR_FILTER_BYTES
        {
            let rows = self.steps(0).max(1);
            let fewest = rows.div_ceil(self.largest_band());
            let columns = columns_for(blocking.groups * fewest);
            blocking.bands = fewest.max(rows.min(ENOUGH_CHUNKS.div_ceil(blocking.groups * columns)));
        }
        blocking.col_blocks = columns_for(blocking.groups * blocking.bands);
        blocking
    }

    /// Returns the number of elements of the largest window of any chunk.
    pub(crate) fn scratch_len(&self, blocking: &Blocking) -> usize {
        self.conv.batch.div_ceil(blocking.groups) * self.window_len(self.steps(0).div_ceil(blocking.bands))
    }

    pub(crate) fn part(&self, blocking: &Blocking, chunk: usize) -> Part {
        // Chunks that read the same columns of the filter follow each other.
        let (chunk, band) = (chunk / blocking.bands, chunk % blocking.bands);
        let (col_block, group) = (chunk / blocking.groups, chunk % blocking.groups);
        let panels = partition::part(self.out_channels().div_ceil(PACK_COLS), blocking.col_blocks, col_block);
        Part {
            images: partition::part(self.conv.batch, blocking.groups, group),
            band: partition::part(self.steps(0), blocking.bands, band),
            cols: panels.start * PACK_COLS..(panels.end * PACK_COLS).min(self.out_channels()),
        }
    }

    /// Returns the block of the output that a chunk computes. A chunk covers a band of one image,
    /// or whole images, so its output is one block.
    pub(crate) fn block(&self, blocking: &Blocking, chunk: usize) -> Block {
        let Part { images, band, cols } = self.part(blocking, chunk);
        let (first, last) = (images.start, images.end.saturating_sub(1));
        Block { rows: self.first_pixel(first, band.start)..self.first_pixel(last, band.end), cols }
    }

    /// Returns the first pixel of an image that belongs to outputs `j` of all classes.
    pub(crate) fn first_pixel(&self, image: usize, j: usize) -> usize {
        let [height, width] = self.out_size();
        (image * height + (j * self.axis(0, 0).out_step).min(height)) * width
    }
}
