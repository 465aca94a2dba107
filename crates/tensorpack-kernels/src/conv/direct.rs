//! Direct convolution: packs the filter into panels; each chunk copies the part of the images it
//! reads, with padding, and multiplies.

use std::ops::Range;

use crate::Block;
use crate::conv::choose::{Microkernel, SHORT_ROW};
use crate::conv::conv_k3::{self, ConvK3};
use crate::conv::correlation::{Axis, Blocking, Correlation, PACK_COLS, Part};
use crate::conv::kernel_table::ConvKernels;
use crate::conv::strided_rows_tile::StridedRowsTile;
use crate::conv::window::{Images, Region};
use crate::gemm::contract::Operands;
use crate::gemm::microkernel::{Prefetch, Tile};
use crate::gemm::pack;
use crate::partition;

/// Rows of a packed panel used together, so that they stay in the L1 cache.
const DEPTH: usize = 288;

/// Returns all pairs of classes, each with the number of terms of the classes before it.
fn classes(work: &Correlation) -> impl Iterator<Item = (Axis, Axis, usize)> {
    let pairs = (0..work.classes(0)).flat_map(|y| (0..work.classes(1)).map(move |x| (y, x)));
    pairs.scan(0, |before, (y, x)| {
        let (y, x, here) = (work.axis(0, y), work.axis(1, x), *before);
        *before += y.taps * x.taps * work.in_channels();
        Some((y, x, here))
    })
}

/// Returns the offset of the panel of column `col` for a class with sums of `depth` terms, after
/// classes with `before` terms.
fn panel_at<V: ConvKernels>(work: &Correlation, before: usize, depth: usize, col: usize) -> usize {
    let (group, within) = (col / PACK_COLS, col % PACK_COLS);
    (group * work.depth() + before) * PACK_COLS + within * depth
}

/// Packs one group of columns of the filter, for all classes.
///
/// # Safety
/// The filter `w` is valid, `packed` is the shared memory of the contraction, and the CPU supports
/// AVX2.
unsafe fn pack<V: ConvKernels>(
    work: &Correlation,
    group: usize,
    w: *const V::Element,
    packed: *mut V::Element,
) {
    let (inputs, outputs) = (work.in_channels(), work.out_channels());
    let cols = group * PACK_COLS..((group + 1) * PACK_COLS).min(outputs);
    for (y, x, before) in classes(work) {
        for col in cols.clone().step_by(2 * V::LANES) {
            let here = (cols.end - col).min(2 * V::LANES);
            let width = pack::width(here, V::LANES);
            let at = panel_at::<V>(work, before, y.taps * x.taps * inputs, col);
            for tap in 0..y.taps * x.taps {
                let (ky, kx) = (y.tap(tap / x.taps), x.tap(tap % x.taps));
                let tap_at = w.wrapping_add((ky * work.conv.kernel[1] + kx) * inputs * outputs);
                let to = packed.wrapping_add(at + tap * inputs * width);
                // SAFETY: one tap of the filter, and its rows of the panel.
                unsafe {
                    match work.backward {
                        false => pack::pack_rows(tap_at.wrapping_add(col), outputs, inputs, here, to, width),
                        // In the filter, the rows of a tap are the output channels of this
                        // correlation, and the columns its input channels.
                        true => {
                            let from = tap_at.wrapping_add(col * inputs);
                            pack::pack_columns(from, inputs, inputs, here, to, width)
                        }
                    }
                }
            }
        }
    }
}

/// Returns the pieces of a class's sum: ranges of rows of taps, and of the steps within them.
fn pieces(taps: usize, segments: usize, steps: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let row = segments * steps;
    let rows = (DEPTH / row.max(1)).max(1);
    let longest = if row > DEPTH { (DEPTH / segments).max(1) } else { steps };
    partition::parts(taps, rows)
        .flat_map(move |t| partition::parts(steps, longest).map(move |s| (t.clone(), s)))
}

/// Runs one chunk: of the first phase, which packs the filter, or of the second.
///
/// # Safety
/// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`.
pub(crate) unsafe fn run_phase<V: ConvKernels>(
    work: &Correlation,
    blocking: &Blocking,
    phase: usize,
    chunk: usize,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
    finish: &mut dyn FnMut(Block),
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match phase {
            0 => pack::<V>(work, chunk, mem.rhs, mem.shared.cast()),
            _ => run::<V>(work, blocking, chunk, mem, scratch, finish),
        }
    }
}

/// Bytes of output computed together and finished while they are in the L2 cache. Smaller pieces
/// would stay in the L1 cache, but the setup of an epilogue for each piece costs more than that
/// saves.
const OUT_BYTES: usize = 256 << 10;

/// Computes the outputs of one chunk.
///
/// # Safety
/// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`; the filter
/// is packed.
unsafe fn run<V: ConvKernels>(
    work: &Correlation,
    blocking: &Blocking,
    chunk: usize,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
    finish: &mut dyn FnMut(Block),
) {
    let Part { images, band, cols: out_cols } = work.part(blocking, chunk);
    let (top, rows) = work.reach(0, band.clone());
    let (left, cols) = work.reach(1, 0..work.steps(1));
    let source = Images { data: mem.lhs, size: work.in_size(), channels: work.in_channels() };
    let region = Region { first: [top, left], size: [rows, cols] };
    // SAFETY: `scratch` has the size of the largest window.
    let window = unsafe { source.window(images.clone(), region, 0, scratch.as_mut_ptr().cast()) };
    let first_image = images.start;
    let short = work.steps(1) < SHORT_ROW;
    let row_bytes = work.first_pixel(0, 1) * out_cols.len() * size_of::<V::Element>();
    // Images with short rows are computed together, others one at a time.
    for images in partition::parts(images.len(), if short { images.len() } else { 1 }) {
        let data = window.data.wrapping_add(images.start * window.image);
        let images = first_image + images.start..first_image + images.end;
        let input =
            ChunkInput { work, images, data, row: window.row, image: window.image, corner: [top, left] };
        for part in partition::parts(band.len(), OUT_BYTES / row_bytes.max(1)) {
            let rows = band.start + part.start..band.start + part.end;
            for col in out_cols.clone().step_by(2 * V::LANES) {
                for (y, x, before) in classes(work) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { input.outputs::<V>(&y, &x, before, rows.clone(), col, mem) }
                }
            }
            for image in input.images.clone() {
                let pixels = work.first_pixel(image, rows.start)..work.first_pixel(image, rows.end);
                finish(Block { rows: pixels, cols: out_cols.clone() });
            }
        }
    }
}

/// The part of some images that a chunk reads.
struct ChunkInput<'a, T> {
    work: &'a Correlation,
    images: Range<usize>,
    data: *const T,
    /// The strides from row to row, and from image to image.
    row: usize,
    image: usize,
    /// The first pixel of the part.
    corner: [isize; 2],
}

impl<T: Copy> ChunkInput<'_, T> {
    /// Computes outputs `rows` of one class, for one panel of columns.
    ///
    /// # Safety
    /// Same as [`run`].
    unsafe fn outputs<V: ConvKernels<Element = T>>(
        &self,
        y: &Axis,
        x: &Axis,
        before: usize,
        rows: Range<usize>,
        col: usize,
        mem: Operands<T>,
    ) {
        let work = self.work;
        let (inputs, outputs, [height, width]) = (work.in_channels(), work.out_channels(), work.out_size());
        let cols = (outputs - col).min(2 * V::LANES);
        let panel_width = pack::width(cols, V::LANES);
        let panel = panel_at::<V>(work, before, y.taps * x.taps * inputs, col);
        let panel = mem.shared.cast::<T>().wrapping_add(panel);
        let kernel = Microkernel::for_outputs::<V>(x, cols);
        // Neighboring taps in a row of the window are contiguous, and one segment, except for the
        // three-tap kernel.
        let (segments, steps) = match kernel {
            Microkernel::K3 => (conv_k3::TAPS, inputs),
            _ if x.dilation == 1 || x.taps <= 1 => (1, x.taps * inputs),
            _ => (x.taps, inputs),
        };
        for (piece, (taps, part)) in pieces(y.taps, segments, steps).enumerate() {
            // The epilogue runs once a sum is complete.
            let whole = taps.end == y.taps && part.end == steps;
            let b = panel.wrapping_add((taps.start * x.taps * inputs + part.start) * panel_width);
            let across = (x.offset - self.corner[1]) * inputs as isize + part.start as isize;
            let rows = rows.start..rows.end.min(y.outs);
            // The input and output addresses of a row of outputs.
            let place = |image: usize, j: usize| {
                let down = y.offset - self.corner[0] + (j * y.stride + taps.start * y.dilation) as isize;
                let a = self.data.wrapping_offset(down * self.row as isize + across);
                let out_row = (self.images.start + image) * height + y.out_first + y.out_step * j;
                let c = mem.out.wrapping_add((out_row * width + x.out_first) * outputs + col);
                (a.wrapping_add(image * self.image), c)
            };
            let (c_row, add) = (x.out_step * outputs, piece > 0);
            let lines = (0..self.images.len()).flat_map(|i| rows.clone().map(move |j| (i, j)));
            let tile = Tile {
                images: taps.len(),
                segments,
                steps: part.len(),
                a: std::ptr::null(),
                a_stride: x.stride * inputs,
                a_segment: x.dilation * inputs,
                a_image: y.dilation * self.row,
                b,
                b_step: panel_width,
                b_segment: inputs * panel_width,
                b_image: x.taps * inputs * panel_width,
                c: std::ptr::null_mut(),
                c_row,
                cols,
                add,
                prefetch: Prefetch::none(b),
            };
            if kernel == Microkernel::StridedRows {
                let pixels = lines.clone().flat_map(|(image, j)| {
                    let ((a, c), a_pixel) = (place(image, j), x.stride * inputs);
                    (0..x.outs).map(move |i| (a.wrapping_add(i * a_pixel), c.wrapping_add(i * c_row)))
                });
                let count = self.images.len() * rows.len() * x.outs;
                // SAFETY: the window holds all elements that the taps of these outputs read.
                unsafe { StridedRowsTile::run::<V>(&tile, pixels, count) }
            }
            for (image, j) in lines {
                let (a, c) = place(image, j);
                // SAFETY: the window holds all elements that the taps of this row of outputs read.
                unsafe {
                    if kernel == Microkernel::K3 {
                        let slide = ConvK3 {
                            rows: taps.len(),
                            channels: part.len(),
                            a,
                            a_pixel: inputs,
                            a_row: y.dilation * self.row,
                            b,
                            b_channel: panel_width,
                            b_tap: inputs * panel_width,
                            b_row: conv_k3::TAPS * inputs * panel_width,
                            c,
                            c_pixel: c_row,
                            cols,
                            add,
                        };
                        slide.run::<V>(x.outs);
                    } else if kernel == Microkernel::Tile {
                        Tile { a, c, ..tile }.run::<V>(x.outs, true);
                    }
                    if whole && mem.bias.is_some() {
                        V::add_bias(c, c_row, x.outs, cols, mem.bias.at(col));
                    }
                }
            }
        }
    }
}
