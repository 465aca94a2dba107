//! Filter gradients by [Winograd F(2x2, 3x3)](crate::conv::winograd_transform).
//!
//! After the tiles of the input and of the output gradient are transformed, the sum over all tiles
//! is 16 matrix products. The tile rows are divided among groups, each with its own partial sums; a
//! second phase adds those in order and transforms the result back.

use std::ops::Range;

use crate::Block;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::Correlation;
use crate::conv::winograd_transform::{PLANES, WinogradTiles, plane};
use crate::partition;

/// Bytes of transformed tiles at a time.
const PART_BYTES: usize = 512 << 10;
/// Number of partial results, and enough chunks for all threads.
const GROUPS: usize = 16;
/// Input channels that a chunk of the second phase sums.
const SUM_CHANNELS: usize = 4;

/// The gradient with respect to a 3x3 filter, divided into tiles and groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradFilterGrad {
    tiles: WinogradTiles,
    groups: usize,
}

impl WinogradFilterGrad {
    /// Divides the tiles into groups. [`Algorithm`](super::choose::Algorithm) decides when Winograd
    /// pays off.
    pub(crate) fn new(conv: &Conv2d) -> WinogradFilterGrad {
        let tiles = WinogradTiles::new(&Correlation { conv: *conv, backward: false });
        WinogradFilterGrad { tiles, groups: tiles.rows().min(GROUPS) }
    }

    pub(crate) fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 => self.groups,
            _ => self.tiles.work.conv.in_channels.div_ceil(SUM_CHANNELS),
        }
    }

    /// Returns the number of output channels, rounded up to whole vectors.
    fn cols(&self) -> usize {
        self.tiles.work.conv.out_channels.next_multiple_of(16)
    }

    /// Returns the number of elements of a partial result.
    fn partial_len(&self) -> usize {
        PLANES * self.tiles.work.conv.in_channels * self.cols()
    }

    pub(crate) fn shared_len(&self) -> usize {
        self.groups * self.partial_len()
    }

    /// Returns the number of tile rows transformed at a time.
    fn rows_at_once(&self) -> usize {
        let c = &self.tiles.work.conv;
        let row_bytes = PLANES * self.tiles.count[1] * (c.in_channels + self.cols()) * size_of::<f32>();
        (PART_BYTES / row_bytes).clamp(1, self.tiles.rows().div_ceil(self.groups))
    }

    /// Returns the number of elements of scratch memory: zeros for a pixel beyond the edges, then
    /// tiles of the image and of the gradient.
    pub(crate) fn scratch_len(&self) -> usize {
        let (tiles, inputs) = (self.rows_at_once() * self.tiles.count[1], self.tiles.work.conv.in_channels);
        inputs.max(self.cols()).next_multiple_of(16)
            + PLANES * (plane(tiles, inputs) + plane(tiles, self.cols()))
    }

    /// Returns the input channels of a chunk of the second phase.
    fn channels(&self, chunk: usize) -> Range<usize> {
        let inputs = self.tiles.work.conv.in_channels;
        chunk * SUM_CHANNELS..((chunk + 1) * SUM_CHANNELS).min(inputs)
    }

    /// Returns the blocks of the output that a chunk of the second phase completes, one per tap.
    pub(crate) fn blocks(&self, chunk: usize) -> impl Iterator<Item = Block> {
        let (channels, c) = (self.channels(chunk), self.tiles.work.conv);
        (0..9).map(move |tap| Block {
            rows: tap * c.in_channels + channels.start..tap * c.in_channels + channels.end,
            cols: 0..c.out_channels,
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::conv::winograd_transform::TILE;
    use crate::conv::winograd_transform::transforms::Partials;
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Prefetch, Tile};

    impl WinogradFilterGrad {
        /// # Safety
        /// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`.
        pub(crate) unsafe fn run<V: WinogradKernels>(
            &self,
            phase: usize,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let c = &self.tiles.work.conv;
            let shared = mem.shared.cast::<f32>();
            if phase == 0 {
                let sums = shared.wrapping_add(chunk * self.partial_len());
                let rows = partition::part(self.tiles.rows(), self.groups, chunk);
                for part in partition::parts(rows.len(), self.rows_at_once()) {
                    let here = rows.start + part.start..rows.start + part.end;
                    // SAFETY: each chunk has its own partial result; the rest is guaranteed by the
                    // caller.
                    unsafe { self.add_rows::<V>(here, mem, sums, scratch, part.start > 0) }
                }
                return;
            }
            for channel in self.channels(chunk) {
                let sums = Partials {
                    first: shared.wrapping_add(channel * self.cols()),
                    plane: c.in_channels * self.cols(),
                    part: self.partial_len(),
                    parts: self.groups,
                    cols: c.out_channels,
                };
                let to = mem.out.wrapping_add(channel * c.out_channels);
                // SAFETY: all partial results are complete, and this chunk owns the channel's rows
                // of the output.
                unsafe { (V::TRANSFORMS.taps)(&sums, to, c.in_channels * c.out_channels) }
            }
            self.blocks(chunk).for_each(finish);
        }

        /// Sums the products of some tile rows, and adds them to `sums` or overwrites it.
        ///
        /// # Safety
        /// Same as [`WinogradFilterGrad::run`].
        unsafe fn add_rows<V: WinogradKernels>(
            &self,
            rows: Range<usize>,
            mem: Operands<f32>,
            sums: *mut f32,
            scratch: &mut [u8],
            add: bool,
        ) {
            let (width, inputs, cols) = (self.tiles.count[1], self.tiles.work.conv.in_channels, self.cols());
            let tiles = rows.len() * width;
            let zeros = scratch.as_mut_ptr().cast::<f32>();
            let pixel = inputs.max(cols).next_multiple_of(16);
            let (image_plane, gradient_plane) = (plane(tiles, inputs), plane(tiles, cols));
            let images = zeros.wrapping_add(pixel);
            let gradients = images.wrapping_add(PLANES * image_plane);
            // SAFETY: the scratch memory begins with room for a pixel.
            unsafe { zeros.write_bytes(0, pixel) };
            for tile in 0..tiles {
                let (row, x) = (rows.start + tile / width, tile % width);
                let pixels = self.tiles.pixels(row, x, mem.lhs, zeros);
                let dy = self.gradient(row, x, mem.rhs, zeros);
                let outputs = self.tiles.work.conv.out_channels;
                // SAFETY: the pixels exist or are zeros; each tile has its own part of the scratch
                // memory.
                unsafe {
                    (V::TRANSFORMS.input)(&pixels, inputs, images.add(tile * inputs), image_plane);
                    (V::TRANSFORMS.gradient)(&dy, outputs, gradients.add(tile * cols), gradient_plane);
                }
            }
            for plane in 0..PLANES {
                for col in (0..cols).step_by(V::MAX_COLS) {
                    let tile = Tile {
                        images: 1,
                        segments: 1,
                        steps: tiles,
                        a: images.wrapping_add(plane * image_plane),
                        a_stride: inputs,
                        a_segment: 0,
                        a_image: 0,
                        b: gradients.wrapping_add(plane * gradient_plane + col),
                        b_step: cols,
                        b_segment: 0,
                        b_image: 0,
                        c: sums.wrapping_add(plane * inputs * cols + col),
                        c_row: cols,
                        cols: (cols - col).min(V::MAX_COLS),
                        add,
                        prefetch: Prefetch::none(gradients),
                    };
                    // SAFETY: the tiles of the image and of the gradient are transformed.
                    unsafe { tile.run::<V>(inputs, false) }
                }
            }
        }

        /// Returns the pixels of the output gradient in tile `x` of tile row `row`.
        fn gradient(&self, row: usize, x: usize, data: *const f32, zeros: *const f32) -> [*const f32; 4] {
            let WinogradTiles { work, count, .. } = &self.tiles;
            let [height, width] = work.out_size();
            let (image, y, x) = (row / count[0], row % count[0] * TILE, x * TILE);
            std::array::from_fn(|i| {
                let (y, x) = (y + i / TILE, x + i % TILE);
                let pixel = (image * height + y) * width + x;
                if y < height && x < width { data.wrapping_add(pixel * work.out_channels()) } else { zeros }
            })
        }
    }
}
