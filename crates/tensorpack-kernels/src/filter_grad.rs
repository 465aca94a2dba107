//! The gradient of a two-dimensional convolution by its filter: for each tap, a product of the input, shifted by the
//! tap, with the gradient of the output, summed over all pixels of all images.
//!
//! The filter is small and the sum long, so images are shared out among groups, each with its own partial result,
//! and a second phase adds those in order. A filter too large to have many copies of is cut by columns instead.

use std::ops::Range;

use crate::contract::{Contract, Float, Operands};
use crate::conv2d::Conv2d;
use crate::correlation::Correlation;
use crate::{Block, Isa, split};

/// The gradient by `w`: the left operand is `x [n, h, w, in]`, the right one `dy [n, oh, ow, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dFilterGrad(pub Conv2d);

/// All partial results together take no more than this.
const PARTIAL_BYTES: usize = 16 << 20;
/// Partial results at most, and chunks that are enough for all threads.
const ENOUGH_CHUNKS: usize = 16;
/// Columns of a chunk are a multiple of this, the widest panel.
const BLOCK_COLS: usize = 32;
/// A tile sums at most about this many pixels, some rows of a large image, and at least half as many, of several
/// small ones: enough that its products are most of its cost, and few enough for the first-level cache.
const TILE_PIXELS: usize = 128;
/// What a chunk reads at a time should stay in a part of the second-level cache.
const WINDOW_BYTES: usize = 256 << 10;
/// Elements of the filter that a chunk of the second phase adds up.
const SUM_ELEMENTS: usize = 1 << 13;

/// How the sum is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Bands of output rows of an image; a band of an image is a unit of work.
    bands: usize,
    /// Images taken together, where each is a single band.
    together: usize,
    /// Groups of units, each with its own partial result.
    groups: usize,
    /// Columns of a chunk.
    cols: usize,
    col_blocks: usize,
}

impl Conv2dFilterGrad {
    fn conv(&self) -> Conv2d {
        self.0.folded()
    }
}

/// Elements of the part of an image that `rows` rows of output read.
fn window_len(c: &Conv2d, rows: usize) -> usize {
    let sums = Correlation { conv: *c, backward: false };
    sums.reach(0, 0..rows).1 * sums.reach(1, 0..c.out_size[1]).1 * c.in_channels
}

/// Elements of a copy of `rows` rows of the output's gradient with columns that fill whole vectors.
fn gradient_len(c: &Conv2d, rows: usize) -> usize {
    rows * c.out_size[1] * c.out_channels.next_multiple_of(16)
}

fn cut(c: &Conv2d) -> Cut {
    let rows = c.out_size[0].max(1);
    let fits =
        |rows: &usize| (window_len(c, *rows) + gradient_len(c, *rows)) * size_of::<f32>() <= WINDOW_BYTES;
    let band = if fits(&rows) { rows } else { (1..rows).rev().find(fits).unwrap_or(1) };
    let bands = rows.div_ceil(band);
    let pixels = (c.out_size[0] * c.out_size[1]).max(1);
    let image_bytes = ((window_len(c, rows) + gradient_len(c, rows)) * size_of::<f32>()).max(1);
    let few = (TILE_PIXELS / 2).div_ceil(pixels);
    let together = if bands == 1 { few.min(WINDOW_BYTES / image_bytes) } else { 1 };
    let partial = (c.filter_rows() * c.out_channels * size_of::<f32>()).max(1);
    let groups = (PARTIAL_BYTES / partial).clamp(1, ENOUGH_CHUNKS).min((c.batch * bands).max(1));
    let panels = c.out_channels.div_ceil(BLOCK_COLS).max(1);
    let cols = panels.div_ceil(ENOUGH_CHUNKS.div_ceil(groups)) * BLOCK_COLS;
    Cut { bands, together: together.max(1), groups, cols, col_blocks: c.out_channels.div_ceil(cols) }
}

/// Chunks of the second phase.
fn sum_blocks(c: &Conv2d) -> usize {
    (c.filter_rows() * c.out_channels).div_ceil(SUM_ELEMENTS).clamp(1, c.filter_rows().max(1))
}

/// The rectangle of the output that a chunk of the last phase completes.
fn block(c: &Conv2d, cut: &Cut, chunk: usize) -> Block {
    match cut.groups {
        1 => Block {
            rows: 0..c.filter_rows(),
            cols: chunk * cut.cols..((chunk + 1) * cut.cols).min(c.out_channels),
        },
        _ => Block { rows: split::part(c.filter_rows(), sum_blocks(c), chunk), cols: 0..c.out_channels },
    }
}

/// The reference: tap by tap, over all pixels.
///
/// # Safety
/// The operands are valid, and nobody else uses this part of the output.
unsafe fn plain<T: Float>(c: &Conv2d, mem: Operands<T>, rows: Range<usize>, cols: Range<usize>) {
    for row in rows {
        let (ky, kx, i) =
            (row / (c.kernel[1] * c.in_channels), row / c.in_channels % c.kernel[1], row % c.in_channels);
        // SAFETY: inside the output, and this thread's.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                mem.out.wrapping_add(row * c.out_channels + cols.start),
                cols.len(),
            )
        };
        out.fill(T::default());
        for n in 0..c.batch {
            for (oy, ox) in (0..c.out_size[0]).flat_map(|oy| (0..c.out_size[1]).map(move |ox| (oy, ox))) {
                let (Some(y), Some(x)) = (c.input_at(0, oy, ky), c.input_at(1, ox, kx)) else { continue };
                let from = ((n * c.in_size[0] + y) * c.in_size[1] + x) * c.in_channels + i;
                let dy = ((n * c.out_size[0] + oy) * c.out_size[1] + ox) * c.out_channels + cols.start;
                // SAFETY: inside the sizes of both operands.
                let (x, dy) =
                    unsafe { (*mem.lhs.add(from), std::slice::from_raw_parts(mem.rhs.add(dy), cols.len())) };
                for (out, &dy) in out.iter_mut().zip(dy) {
                    *out += x * dy;
                }
            }
        }
    }
}

/// Runs a chunk with the plain loops, which know no groups: the last phase does it all.
///
/// # Safety
/// As for [`Contract::run_f32`].
unsafe fn run_plain<T: Float>(
    c: &Conv2d,
    phase: usize,
    chunk: usize,
    mem: Operands<T>,
    finish: &mut dyn FnMut(Block),
) {
    let cut = cut(c);
    if phase == 0 && cut.groups > 1 {
        return;
    }
    let block = block(c, &cut, chunk);
    // SAFETY: blocks of different chunks are disjoint, the rest is passed on from the caller.
    unsafe { plain(c, mem, block.rows.clone(), block.cols.clone()) }
    finish(block);
}

impl Contract for Conv2dFilterGrad {
    fn out_matrix(&self) -> (usize, usize) {
        (self.0.filter_rows(), self.0.out_channels)
    }

    fn lhs_len(&self) -> usize {
        self.0.in_len()
    }

    fn rhs_len(&self) -> usize {
        self.0.out_len()
    }

    fn phases(&self) -> usize {
        if cut(&self.conv()).groups > 1 { 2 } else { 1 }
    }

    fn chunks(&self, phase: usize) -> usize {
        let c = self.conv();
        let cut = cut(&c);
        match phase {
            _ if c.filter_rows() * c.out_channels == 0 => 0,
            0 => cut.groups * cut.col_blocks,
            _ => sum_blocks(&c),
        }
    }

    fn shared_bytes(&self) -> usize {
        let c = self.conv();
        let groups = cut(&c).groups;
        if groups > 1 { groups * c.filter_rows() * c.out_channels * size_of::<f32>() } else { 0 }
    }

    fn scratch_bytes(&self) -> usize {
        let c = self.conv();
        let cut = cut(&c);
        let rows = c.out_size[0].div_ceil(cut.bands);
        cut.together * (window_len(&c, rows).next_multiple_of(16) + gradient_len(&c, rows)) * size_of::<f32>()
    }

    fn flops(&self) -> f64 {
        self.0.flops()
    }

    unsafe fn run_f32(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let c = self.conv();
        debug_assert!(scratch.len() >= self.scratch_bytes());
        // SAFETY: passed on from the caller, who has checked that the machine has `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => fast::run::<std::arch::x86_64::__m512>(&c, phase, chunk, mem, scratch, finish),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => fast::run::<std::arch::x86_64::__m256>(&c, phase, chunk, mem, scratch, finish),
                _ => run_plain(&c, phase, chunk, mem, finish),
            }
        }
    }

    unsafe fn run_f64(
        &self,
        _isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f64>,
        _scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        // SAFETY: passed on from the caller.
        unsafe { run_plain(&self.conv(), phase, chunk, mem, finish) }
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::panel;
    use crate::simd::Simd;
    use crate::slide::TAPS;
    use crate::slide_filter::SlideFilter;
    use crate::tile::{Tile, sum_partials};
    use crate::window::{Images, Region};

    /// Whether the sliding kernel can do this, and has enough channels to keep the machine busy.
    fn slides<V: Simd>(c: &Conv2d, cols: usize) -> bool {
        let channels = V::MAX_CHANNELS[cols.div_ceil(V::LANES) - 1];
        let fits = c.kernel[1] == TAPS && c.stride[1] == 1 && c.dilation[1] == 1 && c.out_size[1] >= 2;
        channels > 0 && fits && c.in_channels >= channels
    }

    /// # Safety
    /// As for [`Contract::run_f32`], with the machine having the instructions of `V`.
    pub(super) unsafe fn run<V: Simd>(
        c: &Conv2d,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let cut = cut(c);
        let len = c.filter_rows() * c.out_channels;
        if phase == 0 {
            let (group, col_block) = (chunk / cut.col_blocks, chunk % cut.col_blocks);
            let cols = col_block * cut.cols..((col_block + 1) * cut.cols).min(c.out_channels);
            let out = match cut.groups {
                1 => mem.out,
                _ => mem.shared.cast::<f32>().wrapping_add(group * len),
            };
            // SAFETY: each chunk has its own columns of its own partial result; the rest is passed on.
            unsafe { group_sum::<V>(c, &cut, group, cols, Operands { out, ..mem }, scratch) }
            if cut.groups > 1 {
                return;
            }
        } else {
            let rows = block(c, &cut, chunk).rows;
            let elements = rows.start * c.out_channels..rows.end * c.out_channels;
            // SAFETY: all partial results are complete, and this chunk owns these rows of the output.
            unsafe { sum_partials(mem.shared.cast(), len, cut.groups, mem.out, elements) }
        }
        finish(block(c, &cut, chunk));
    }

    /// Sums the units of one group, for some columns, into `mem.out`.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn group_sum<V: Simd>(
        c: &Conv2d,
        cut: &Cut,
        group: usize,
        cols: Range<usize>,
        mem: Operands<f32>,
        scratch: &mut [u8],
    ) {
        let units = split::part(c.batch * cut.bands, cut.groups, group);
        let mut first = units.start;
        loop {
            // Several whole images, or one band of one image. Without any unit the sum is zero.
            let last = (first + cut.together).min(units.end);
            let images = first / cut.bands..last.div_ceil(cut.bands);
            let band = split::part(c.out_size[0], cut.bands, first % cut.bands);
            // SAFETY: passed on from the caller.
            unsafe {
                add_images::<V>(c, images, band, cols.clone(), mem, scratch, first > units.start);
            }
            first = last;
            if first >= units.end {
                return;
            }
        }
    }

    /// Sums the products of a band of output rows of some images, and adds them to what is in `mem.out` or replaces
    /// it.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn add_images<V: Simd>(
        c: &Conv2d,
        images: Range<usize>,
        band: Range<usize>,
        cols: Range<usize>,
        mem: Operands<f32>,
        scratch: &mut [u8],
        add: bool,
    ) {
        let sums = Correlation { conv: *c, backward: false };
        let (top, rows) = sums.reach(0, band.clone());
        let (left, width) = sums.reach(1, 0..c.out_size[1]);
        let source = Images { data: mem.lhs, size: c.in_size, channels: c.in_channels };
        let region = Region { first: [top, left], size: [rows, width] };
        let copy = scratch.as_mut_ptr().cast::<f32>();
        // SAFETY: `scratch` has room for the window and, after it, the copy of the gradient.
        let window = unsafe { source.window(images.clone(), region, copy) };

        // The gradient of the output is read in whole vectors: it is copied if its columns do not fill them.
        let pixels = c.out_size[0] * c.out_size[1];
        let skip = (images.start * pixels + band.start * c.out_size[1]) * c.out_channels + cols.start;
        let mut dy = mem.rhs.wrapping_add(skip);
        let (mut dy_pixel, mut dy_image) = (c.out_channels, pixels * c.out_channels);
        if !c.out_channels.is_multiple_of(V::LANES) {
            let copy = copy.wrapping_add((images.len() * rows * width * c.in_channels).next_multiple_of(16));
            let band_pixels = band.len() * c.out_size[1];
            let copy_pixel = panel::width(cols.len(), V::LANES);
            for image in 0..images.len() {
                let (from, to) = (dy.wrapping_add(image * dy_image), image * band_pixels * copy_pixel);
                let to = copy.wrapping_add(to);
                // SAFETY: the band's part of the gradient, and its place in the copy.
                unsafe { panel::pack_rows(from, dy_pixel, band_pixels, cols.len(), to, copy_pixel) }
            }
            (dy, dy_pixel, dy_image) = (copy, copy_pixel, band_pixels * copy_pixel);
        }

        // Neighbouring taps in a row of the window are one run of numbers, which are the rows of the product.
        let (taps, run) = match c.dilation[1] == 1 || c.kernel[1] <= 1 {
            true => (1, c.kernel[1] * c.in_channels),
            false => (c.kernel[1], c.in_channels),
        };
        for rows in split::parts(band.len(), (TILE_PIXELS / c.out_size[1].max(1)).max(1)) {
            let (a, b) = (rows.start * c.stride[0] * window.row, rows.start * c.out_size[1] * dy_pixel);
            for col in (0..cols.len()).step_by(2 * V::LANES) {
                if slides::<V>(c, (cols.len() - col).min(2 * V::LANES)) {
                    for ky in 0..c.kernel[0] {
                        let sum = SlideFilter {
                            images: images.len(),
                            rows: rows.len(),
                            pixels: c.out_size[1],
                            a: window.data.wrapping_add(a + ky * c.dilation[0] * window.row),
                            a_pixel: c.in_channels,
                            a_row: c.stride[0] * window.row,
                            a_image: window.image,
                            b: dy.wrapping_add(b + col),
                            b_pixel: dy_pixel,
                            b_row: c.out_size[1] * dy_pixel,
                            b_image: dy_image,
                            c: mem.out.wrapping_add(ky * run * c.out_channels + cols.start + col),
                            c_channel: c.out_channels,
                            c_tap: c.in_channels * c.out_channels,
                            cols: (cols.len() - col).min(2 * V::LANES),
                            add: add || rows.start > 0,
                        };
                        // SAFETY: the window and the gradient hold all pixels of the band, shifted by any tap.
                        unsafe { sum.run::<V>(c.in_channels) }
                    }
                    continue;
                }
                for (ky, kx) in (0..c.kernel[0]).flat_map(|ky| (0..taps).map(move |kx| (ky, kx))) {
                    let tap = ky * c.dilation[0] * window.row + kx * c.dilation[1] * c.in_channels;
                    let out = (ky * taps + kx) * run * c.out_channels + cols.start + col;
                    let tile = Tile {
                        images: images.len(),
                        segments: rows.len(),
                        steps: c.out_size[1],
                        a: window.data.wrapping_add(a + tap),
                        a_stride: c.stride[1] * c.in_channels,
                        a_segment: c.stride[0] * window.row,
                        a_image: window.image,
                        b: dy.wrapping_add(b + col),
                        b_step: dy_pixel,
                        b_segment: c.out_size[1] * dy_pixel,
                        b_image: dy_image,
                        c: mem.out.wrapping_add(out),
                        c_row: c.out_channels,
                        cols: (cols.len() - col).min(2 * V::LANES),
                        add: add || rows.start > 0,
                    };
                    // SAFETY: the window and the gradient hold all pixels of the band, shifted by any tap.
                    unsafe { tile.run::<V>(run, false) }
                }
            }
        }
    }
}
