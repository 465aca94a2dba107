//! Sliding sums over images: what a convolution's output and its input gradient have in common. Each output pixel is
//! a sum over taps, and along each axis taps and outputs walk over the input in constant steps.
//!
//! The gradient by the input of a convolution with stride `s` is `s` such walks along each axis: only every `s`-th
//! tap reaches a pixel, so the pixels fall into classes, each with its own taps. No product is with a known zero.

use crate::Block;
use crate::conv2d::Conv2d;
use crate::split;

/// One class of outputs along one axis: output `out_first + out_step * j` sums, over taps `t`, input
/// `stride * j + offset + dilation * t` times the filter at `tap_first + tap_step * t`.
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

/// A convolution, or its gradient by the input, as sliding sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correlation {
    pub(crate) conv: Conv2d,
    pub(crate) backward: bool,
}

/// How the output is cut into chunks: groups of images, and bands of their rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) groups: usize,
    pub(crate) bands: usize,
}

/// Columns that are packed together: a multiple of every panel width.
pub(crate) const PACK_COLS: usize = 32;
/// What a chunk reads should stay in a part of the second-level cache.
const WINDOW_BYTES: usize = 384 << 10;
/// Fewer pixels than this are too few to make good use of packed weights.
const MIN_PIXELS: usize = 64;
/// Chunks that are enough for all threads.
const ENOUGH_CHUNKS: usize = 16;

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

    /// Terms of the longest sum, which is also what all classes' sums have together.
    pub(crate) fn depth(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1] * self.in_channels()
    }

    /// How many classes of outputs an axis has.
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
        // Tap k takes output o to input s * o + d * k - pad. For inputs class + s * j this has solutions only for
        // every (s / g)-th tap, and from one of those to the next o steps back by d / g.
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

    /// Outputs along an axis of the class that has most.
    fn steps(&self, axis: usize) -> usize {
        self.axis(axis, 0).outs
    }

    /// The inputs that outputs `range` of all classes read along an axis: the first, and how many.
    pub(crate) fn reach(&self, axis: usize, range: std::ops::Range<usize>) -> (isize, usize) {
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

    /// Elements of the window that a band of `rows` reads of one image.
    fn window_len(&self, rows: usize) -> usize {
        self.reach(0, 0..rows).1 * self.reach(1, 0..self.steps(1)).1 * self.in_channels()
    }

    pub(crate) fn cut(&self) -> Cut {
        let (batch, rows) = (self.conv.batch.max(1), self.steps(0).max(1));
        let fits = |rows: &usize| self.window_len(*rows) * size_of::<f32>() <= WINDOW_BYTES;
        let band = if fits(&rows) { rows } else { (1..rows).rev().find(fits).unwrap_or(1) };
        let bands = rows.div_ceil(band).max(rows.min(ENOUGH_CHUNKS.div_ceil(batch)));
        let pixels = (self.out_size()[0] * self.out_size()[1]).max(1);
        let images = match bands {
            1 => MIN_PIXELS.div_ceil(pixels).min(batch.div_ceil(ENOUGH_CHUNKS)),
            _ => 1,
        };
        Cut { groups: batch.div_ceil(images), bands }
    }

    /// Elements of the largest window of any chunk.
    pub(crate) fn scratch_len(&self) -> usize {
        let cut = self.cut();
        self.conv.batch.div_ceil(cut.groups) * self.window_len(self.steps(0).div_ceil(cut.bands))
    }

    /// The images of a chunk, and which outputs of each class along the first axis.
    pub(crate) fn part(&self, cut: &Cut, chunk: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (group, band) = (chunk / cut.bands, chunk % cut.bands);
        (split::part(self.conv.batch, cut.groups, group), split::part(self.steps(0), cut.bands, band))
    }

    /// The rectangle of the output that a chunk computes. A chunk has one image or whole images, so it is one.
    pub(crate) fn block(&self, cut: &Cut, chunk: usize) -> Block {
        let (images, band) = self.part(cut, chunk);
        let (first, last) = (images.start, images.end.saturating_sub(1));
        let rows = self.first_pixel(first, band.start)..self.first_pixel(last, band.end);
        Block { rows, cols: 0..self.out_channels() }
    }

    /// The first pixel of an image that belongs to outputs `j` of all classes.
    fn first_pixel(&self, image: usize, j: usize) -> usize {
        let [height, width] = self.out_size();
        (image * height + (j * self.axis(0, 0).out_step).min(height)) * width
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod fast {
    use std::ops::Range;

    use super::*;
    use crate::contract::Operands;
    use crate::panel;
    use crate::simd::Simd;
    use crate::slide::{self, Slide};
    use crate::tile::Tile;
    use crate::window::{Images, Region};

    /// Rows of a packed panel that are used together, so that they stay in the first-level cache.
    const DEPTH: usize = 288;

    /// All pairs of classes, each with the terms of the sums of those before it.
    fn classes(work: &Correlation) -> impl Iterator<Item = (Axis, Axis, usize)> {
        let pairs = (0..work.classes(0)).flat_map(|y| (0..work.classes(1)).map(move |x| (y, x)));
        pairs.scan(0, |before, (y, x)| {
            let (y, x, here) = (work.axis(0, y), work.axis(1, x), *before);
            *before += y.taps * x.taps * work.in_channels();
            Some((y, x, here))
        })
    }

    /// Where the panel that starts at column `col` begins for a class of sums of `depth` terms after `before` others.
    fn panel_at<V: Simd>(work: &Correlation, before: usize, depth: usize, col: usize) -> usize {
        let (group, within) = (col / PACK_COLS, col % PACK_COLS);
        (group * work.depth() + before) * PACK_COLS + within * depth
    }

    /// Packs one group of columns of the filter, for all classes.
    ///
    /// # Safety
    /// The filter `w` is valid, `packed` is the shared memory of the contraction, AVX2 is there.
    pub(crate) unsafe fn pack<V: Simd>(work: &Correlation, group: usize, w: *const f32, packed: *mut f32) {
        let (inputs, outputs) = (work.in_channels(), work.out_channels());
        let cols = group * PACK_COLS..((group + 1) * PACK_COLS).min(outputs);
        for (y, x, before) in classes(work) {
            for col in cols.clone().step_by(2 * V::LANES) {
                let here = (cols.end - col).min(2 * V::LANES);
                let width = panel::width(here, V::LANES);
                let at = panel_at::<V>(work, before, y.taps * x.taps * inputs, col);
                for tap in 0..y.taps * x.taps {
                    let (ky, kx) = (y.tap(tap / x.taps), x.tap(tap % x.taps));
                    let tap_at = w.wrapping_add((ky * work.conv.kernel[1] + kx) * inputs * outputs);
                    let to = packed.wrapping_add(at + tap * inputs * width);
                    // SAFETY: one tap of the filter, and its place in the panel.
                    unsafe {
                        match work.backward {
                            false => {
                                panel::pack_rows(tap_at.wrapping_add(col), outputs, inputs, here, to, width)
                            }
                            // A tap is stored as rows of what is here the output by columns of the input.
                            true => {
                                let from = tap_at.wrapping_add(col * inputs);
                                panel::pack_columns(from, inputs, inputs, here, to, width)
                            }
                        }
                    }
                }
            }
        }
    }

    /// The pieces a class's sum is cut into: ranges of rows of taps, and of the steps within them.
    fn pieces(
        taps: usize,
        segments: usize,
        steps: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let row = segments * steps;
        let rows = (DEPTH / row.max(1)).max(1);
        let longest = if row > DEPTH { (DEPTH / segments).max(1) } else { steps };
        split::parts(taps, rows).flat_map(move |t| split::parts(steps, longest).map(move |s| (t.clone(), s)))
    }

    /// Whether the sliding kernel can do this.
    fn slides<V: Simd>(x: &Axis, cols: usize) -> bool {
        let pixels = V::MAX_PIXELS[cols.div_ceil(V::LANES) - 1];
        pixels > 0 && x.stride == 1 && x.dilation == 1 && x.taps == slide::TAPS
    }

    /// Bytes of output that are computed together, and finished while they are in the second-level cache. Smaller pieces
    /// would stay in the first level, but what an epilogue prepares for each piece costs more than that saves.
    const OUT_BYTES: usize = 256 << 10;

    /// Computes the outputs of one chunk.
    ///
    /// # Safety
    /// As for [`crate::Contract::run_f32`], with the machine having the instructions of `V`; the filter is packed.
    pub(crate) unsafe fn run<V: Simd>(
        work: &Correlation,
        cut: &Cut,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let (images, band) = work.part(cut, chunk);
        let (top, rows) = work.reach(0, band.clone());
        let (left, cols) = work.reach(1, 0..work.steps(1));
        let source = Images { data: mem.lhs, size: work.in_size(), channels: work.in_channels() };
        let region = Region { first: [top, left], size: [rows, cols] };
        // SAFETY: `scratch` has the size of the largest window.
        let window = unsafe { source.window(images.clone(), region, scratch.as_mut_ptr().cast()) };
        let row_bytes = work.first_pixel(0, 1) * work.out_channels() * size_of::<f32>();
        for image in images.clone() {
            let data = window.data.wrapping_add((image - images.start) * window.image);
            let seen = Seen { work, image, data, row: window.row, corner: [top, left] };
            for part in split::parts(band.len(), OUT_BYTES / row_bytes.max(1)) {
                let rows = band.start + part.start..band.start + part.end;
                for col in (0..work.out_channels()).step_by(2 * V::LANES) {
                    for (y, x, before) in classes(work) {
                        // SAFETY: passed on from the caller.
                        unsafe { seen.outputs::<V>(&y, &x, before, rows.clone(), col, mem) }
                    }
                }
                let pixels = work.first_pixel(image, rows.start)..work.first_pixel(image, rows.end);
                finish(Block { rows: pixels, cols: 0..work.out_channels() });
            }
        }
    }

    /// What a chunk sees of one image.
    struct Seen<'a> {
        work: &'a Correlation,
        image: usize,
        data: *const f32,
        /// From row to row.
        row: usize,
        /// The first pixel seen.
        corner: [isize; 2],
    }

    impl Seen<'_> {
        /// Computes outputs `rows` of one class, for one panel of columns.
        ///
        /// # Safety
        /// As for [`run`].
        unsafe fn outputs<V: Simd>(
            &self,
            y: &Axis,
            x: &Axis,
            before: usize,
            rows: Range<usize>,
            col: usize,
            mem: Operands<f32>,
        ) {
            let work = self.work;
            let (inputs, outputs, [height, width]) =
                (work.in_channels(), work.out_channels(), work.out_size());
            let cols = (outputs - col).min(2 * V::LANES);
            let panel_width = panel::width(cols, V::LANES);
            let panel = panel_at::<V>(work, before, y.taps * x.taps * inputs, col);
            let panel = mem.shared.cast::<f32>().wrapping_add(panel);
            let slides = slides::<V>(x, cols);
            // Neighbouring taps in a row of the window are one run of numbers, unless they slide.
            let (segments, steps) = match slides {
                true => (slide::TAPS, inputs),
                false if x.dilation == 1 || x.taps <= 1 => (1, x.taps * inputs),
                false => (x.taps, inputs),
            };
            for (piece, (taps, part)) in pieces(y.taps, segments, steps).enumerate() {
                // What is done to a sum is done once it is whole.
                let whole = taps.end == y.taps && part.end == steps;
                let b = panel.wrapping_add((taps.start * x.taps * inputs + part.start) * panel_width);
                let across = (x.offset - self.corner[1]) * inputs as isize + part.start as isize;
                for j in rows.start..rows.end.min(y.outs) {
                    let down = y.offset - self.corner[0] + (j * y.stride + taps.start * y.dilation) as isize;
                    let a = self.data.wrapping_offset(down * self.row as isize + across);
                    let out_row = self.image * height + y.out_first + y.out_step * j;
                    let c = mem.out.wrapping_add((out_row * width + x.out_first) * outputs + col);
                    let (c_row, add) = (x.out_step * outputs, piece > 0);
                    // SAFETY: the window holds all that the taps of this row of outputs reach.
                    unsafe {
                        if slides {
                            let slide = Slide {
                                rows: taps.len(),
                                channels: part.len(),
                                a,
                                a_pixel: inputs,
                                a_row: y.dilation * self.row,
                                b,
                                b_channel: panel_width,
                                b_tap: inputs * panel_width,
                                b_row: slide::TAPS * inputs * panel_width,
                                c,
                                c_pixel: c_row,
                                cols,
                                add,
                            };
                            slide.run::<V>(x.outs);
                        } else {
                            let tile = Tile {
                                images: taps.len(),
                                segments,
                                steps: part.len(),
                                a,
                                a_stride: x.stride * inputs,
                                a_segment: x.dilation * inputs,
                                a_image: y.dilation * self.row,
                                b,
                                b_step: panel_width,
                                b_segment: inputs * panel_width,
                                b_image: x.taps * inputs * panel_width,
                                c,
                                c_row,
                                cols,
                                add,
                            };
                            tile.run::<V>(x.outs, true);
                        }
                        if whole && mem.bias.is_some() {
                            V::finish_rows(c, c_row, x.outs, cols, mem.bias.at(col));
                        }
                    }
                }
            }
        }
    }
}
