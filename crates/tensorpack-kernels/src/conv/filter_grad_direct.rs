//! Direct filter gradient: each chunk copies the part of the images it reads, with padding, and
//! multiplies it, shifted by each tap, by the output gradient.

use std::ops::{AddAssign, Range};

use crate::Block;
use crate::conv::choose::Microkernel;
use crate::conv::conv_k3::TAPS;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::Correlation;
use crate::conv::filter_grad::{Blocking, Part, TILE_PIXELS, block, gap};
use crate::conv::filter_grad_k3::FilterGradK3;
use crate::conv::kernel_table::ConvKernels;
use crate::conv::window::{Images, Region};
use crate::gemm::contract::Operands;
use crate::gemm::microkernel::{Prefetch, Tile, sum_partials};
use crate::gemm::pack;
use crate::partition;

/// Maximum number of columns of an output gradient that is read in place.
const MAX_IN_PLACE: usize = 64;

/// # Safety
/// Same as [`Contract::run_f32`], on a CPU that supports the instructions of `V`.
pub(crate) unsafe fn run<V: ConvKernels<Element: AddAssign>>(
    c: &Conv2d,
    blocking: &Blocking,
    phase: usize,
    chunk: usize,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
    finish: &mut dyn FnMut(Block),
) {
    let len = c.filter_rows() * c.out_channels;
    if phase == 0 {
        let part = blocking.part(c, chunk);
        let out = match blocking.groups {
            1 => mem.out,
            _ => mem.shared.cast::<V::Element>().wrapping_add(part.group * len),
        };
        // SAFETY: each chunk has its own taps and columns of its own partial result; the rest is
        // guaranteed by the caller.
        unsafe { group_sum::<V>(c, blocking, &part, Operands { out, ..mem }, scratch) }
        if blocking.groups > 1 {
            return;
        }
    } else {
        let rows = block(c, blocking, chunk).rows;
        let elements = rows.start * c.out_channels..rows.end * c.out_channels;
        // SAFETY: all partial results are complete, and this chunk owns these rows of the output.
        unsafe { sum_partials(mem.shared.cast(), len, blocking.groups, mem.out, elements) }
    }
    finish(block(c, blocking, chunk));
}

/// Sums the units of one group, for some taps and columns, into `mem.out`.
///
/// # Safety
/// Same as [`run`].
unsafe fn group_sum<V: ConvKernels>(
    c: &Conv2d,
    blocking: &Blocking,
    part: &Part,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
) {
    let units = partition::part(c.batch * blocking.bands, blocking.groups, part.group);
    let mut first = units.start;
    loop {
        // Several whole images, or one band of one image. Without units the sum is zero.
        let last = (first + blocking.together).min(units.end);
        let images = first / blocking.bands..last.div_ceil(blocking.bands);
        let band = partition::part(c.out_size[0], blocking.bands, first % blocking.bands);
        // SAFETY: guaranteed by the caller.
        unsafe {
            add_images::<V>(c, images, band, part, mem, scratch, first > units.start);
        }
        first = last;
        if first >= units.end {
            return;
        }
    }
}

/// Sums the products of a band of output rows of some images, and adds the result to `mem.out` or
/// overwrites it.
///
/// # Safety
/// Same as [`run`].
unsafe fn add_images<V: ConvKernels>(
    c: &Conv2d,
    images: Range<usize>,
    band: Range<usize>,
    part: &Part,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
    add: bool,
) {
    let sums = Correlation { conv: *c, backward: false };
    let (top, rows) = sums.reach(0, band.clone());
    let (left, width) = sums.reach(1, 0..c.out_size[1]);
    let (taps, cols) = (part.taps.clone(), part.cols.clone());
    let top = top + (taps.start * c.dilation[0]) as isize;
    let rows = rows.saturating_sub((c.kernel[0] - taps.len()) * c.dilation[0]);
    let source = Images { data: mem.lhs, size: c.in_size, channels: c.in_channels };
    let region = Region { first: [top, left], size: [rows, width] };
    let copy = scratch.as_mut_ptr().cast::<V::Element>();
    // SAFETY: `scratch` has room for the window and, after it, the copy of the gradient.
    let window = unsafe { source.window(images.clone(), region, gap(c), copy) };

    // The output gradient is read in whole vectors, pixel after pixel. It is copied, panel after
    // panel, if its columns do not fill whole vectors, or if there are so many that pixels would
    // evict each other from the cache.
    let (image_pixels, band_pixels) = (c.out_size[0] * c.out_size[1], band.len() * c.out_size[1]);
    let skip = (images.start * image_pixels + band.start * c.out_size[1]) * c.out_channels + cols.start;
    let dy = mem.rhs.wrapping_add(skip);
    let packed = !c.out_channels.is_multiple_of(V::LANES) || c.out_channels > MAX_IN_PLACE;
    let copy =
        copy.wrapping_add((images.len() * rows * width * (c.in_channels + gap(c))).next_multiple_of(16));
    let widest = if Microkernel::for_filter_grad::<V>(c, cols.len().min(2 * V::LANES)) == Microkernel::K3 {
        2 * V::LANES
    } else {
        V::MAX_COLS
    };
    // The panel that starts at a column, with the strides from pixel to pixel and from image to
    // image.
    let panel = |col: usize| match packed {
        true => {
            let width = pack::width((cols.len() - col).min(widest), V::LANES);
            (copy.cast_const().wrapping_add(images.len() * band_pixels * col), width, band_pixels * width)
        }
        false => (dy.wrapping_add(col), c.out_channels, image_pixels * c.out_channels),
    };
    for col in (0..cols.len()).step_by(widest).filter(|_| packed) {
        let (here, (to, width, image)) = ((cols.len() - col).min(widest), panel(col));
        for i in 0..images.len() {
            let from = dy.wrapping_add(i * image_pixels * c.out_channels + col);
            let to = to.cast_mut().wrapping_add(i * image);
            // SAFETY: the band's part of the gradient, and its part of the copy.
            unsafe { pack::pack_rows(from, c.out_channels, band_pixels, here, to, width) }
        }
    }

    // Neighboring taps in a row of the window are contiguous: they are the rows of the product.
    let (across, run) = match (c.dilation[1] == 1 && gap(c) == 0) || c.kernel[1] <= 1 {
        true => (1, c.kernel[1] * c.in_channels),
        false => (c.kernel[1], c.in_channels),
    };
    for rows in partition::parts(band.len(), (TILE_PIXELS / c.out_size[1].max(1)).max(1)) {
        let a = rows.start * c.stride[0] * window.row;
        for col in (0..cols.len()).step_by(widest) {
            let (dy, dy_pixel, dy_image) = panel(col);
            let b = dy.wrapping_add(rows.start * c.out_size[1] * dy_pixel);
            if Microkernel::for_filter_grad::<V>(c, (cols.len() - col).min(widest)) == Microkernel::K3 {
                for (down, ky) in taps.clone().enumerate() {
                    let sum = FilterGradK3 {
                        images: images.len(),
                        rows: rows.len(),
                        pixels: c.out_size[1],
                        a: window.data.wrapping_add(a + down * c.dilation[0] * window.row),
                        a_pixel: window.pixel,
                        a_row: c.stride[0] * window.row,
                        a_image: window.image,
                        b,
                        b_pixel: dy_pixel,
                        b_row: c.out_size[1] * dy_pixel,
                        b_image: dy_image,
                        c: mem
                            .out
                            .wrapping_add(ky * TAPS * c.in_channels * c.out_channels + cols.start + col),
                        c_channel: c.out_channels,
                        c_tap: c.in_channels * c.out_channels,
                        cols: (cols.len() - col).min(widest),
                        add: add || rows.start > 0,
                    };
                    // SAFETY: the window and the gradient hold all pixels of the band, shifted by
                    // any tap.
                    unsafe { sum.run::<V>(c.in_channels) }
                }
                continue;
            }
            for (ky, kx) in taps.clone().flat_map(|ky| (0..across).map(move |kx| (ky, kx))) {
                let tap = (ky - taps.start) * c.dilation[0] * window.row + kx * c.dilation[1] * window.pixel;
                let out = (ky * across + kx) * run * c.out_channels + cols.start + col;
                let tile = Tile {
                    images: images.len(),
                    segments: rows.len(),
                    steps: c.out_size[1],
                    a: window.data.wrapping_add(a + tap),
                    a_stride: c.stride[1] * window.pixel,
                    a_segment: c.stride[0] * window.row,
                    a_image: window.image,
                    b,
                    b_step: dy_pixel,
                    b_segment: c.out_size[1] * dy_pixel,
                    b_image: dy_image,
                    c: mem.out.wrapping_add(out),
                    c_row: c.out_channels,
                    cols: (cols.len() - col).min(widest),
                    add: add || rows.start > 0,
                    prefetch: Prefetch::none(b),
                };
                // SAFETY: the window and the gradient hold all pixels of the band, shifted by any
                // tap.
                unsafe { tile.run::<V>(run, false) }
            }
        }
    }
}
