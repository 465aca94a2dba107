//! Filter gradients by [Winograd F(2x2, 2x2)](crate::conv::winograd_stride2), for 4x4 filters with
//! stride 2.
//!
//! After the tiles of the input and of the output gradient are transformed, the sum over all tiles
//! is 9 matrix products for each phase of the input. A chunk computes the four taps of one phase for
//! a block of columns (output channels): its sums stay in the L2 cache, and it transforms them back
//! at the end.

use std::ops::Range;

use crate::Block;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::{Correlation, PACK_COLS};
use crate::conv::winograd_stride2::{PHASES, PLANES, TAPS, TILE, WinogradStride2};
use crate::conv::winograd_tiles::plane;
use crate::partition;

/// Bytes of transformed tiles at a time.
const PART_BYTES: usize = 384 << 10;
/// Fewest tiles at a time: each part of the tiles adds to all sums.
const FEWEST_TILES: usize = 16;
/// Enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;

/// The gradient with respect to a 4x4 filter with stride 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradStride2FilterGrad {
    conv: Conv2d,
    tiles: WinogradStride2,
    /// Blocks of columns.
    col_blocks: usize,
}

impl WinogradStride2FilterGrad {
    /// Divides the columns into blocks.
    pub(crate) fn new(conv: &Conv2d) -> WinogradStride2FilterGrad {
        let panels = conv.out_channels.div_ceil(PACK_COLS);
        WinogradStride2FilterGrad {
            conv: *conv,
            tiles: WinogradStride2::new(&Correlation { conv: *conv, backward: false }),
            col_blocks: ENOUGH_CHUNKS.div_ceil(PHASES).min(panels),
        }
    }

    pub(crate) fn chunks(&self) -> usize {
        PHASES * self.col_blocks
    }

    /// Returns the columns of a chunk.
    fn cols(&self, chunk: usize) -> Range<usize> {
        let outputs = self.conv.out_channels;
        let panels = partition::part(outputs.div_ceil(PACK_COLS), self.col_blocks, chunk / PHASES);
        panels.start * PACK_COLS..(panels.end * PACK_COLS).min(outputs)
    }

    /// Returns the columns of the widest chunk, in whole vectors.
    fn widest(&self) -> usize {
        self.conv.out_channels.div_ceil(PACK_COLS).div_ceil(self.col_blocks) * PACK_COLS
    }

    fn tiles_at_once(&self) -> usize {
        let bytes = PLANES * (self.conv.in_channels + self.widest()) * size_of::<f32>();
        (PART_BYTES / bytes).max(FEWEST_TILES).min(self.tiles.tiles().max(1))
    }

    /// Returns the number of elements of scratch memory: zeros for a pixel beyond the edges, then
    /// tiles of the image and of the gradient, then the sums.
    pub(crate) fn scratch_len(&self) -> usize {
        let (tiles, inputs, cols) = (self.tiles_at_once(), self.conv.in_channels, self.widest());
        inputs.max(cols).next_multiple_of(16)
            + PLANES * (plane(tiles, inputs) + plane(tiles, cols) + inputs * cols)
    }

    /// Returns the blocks of the output that a chunk completes, one per tap.
    pub(crate) fn blocks(&self, chunk: usize) -> impl Iterator<Item = Block> {
        let (cols, inputs, taps) = (self.cols(chunk), self.conv.in_channels, self.tiles.taps(chunk % PHASES));
        taps.into_iter().map(move |[y, x]| {
            let first = (y * TAPS + x) * inputs;
            Block { rows: first..first + inputs, cols: cols.clone() }
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Prefetch, Tile};

    impl WinogradStride2FilterGrad {
        /// # Safety
        /// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`.
        pub(crate) unsafe fn run<V: WinogradKernels>(
            &self,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let (phase, cols, inputs) = (chunk % PHASES, self.cols(chunk), self.conv.in_channels);
            let width = cols.len().next_multiple_of(16);
            let at_once = self.tiles_at_once();
            let zeros = scratch.as_mut_ptr().cast::<f32>();
            let pixel = inputs.max(self.widest()).next_multiple_of(16);
            let (image_plane, gradient_plane) = (plane(at_once, inputs), plane(at_once, width));
            let images = zeros.wrapping_add(pixel);
            let gradients = images.wrapping_add(PLANES * image_plane);
            let sums = gradients.wrapping_add(PLANES * gradient_plane);
            // SAFETY: the scratch memory begins with room for a pixel.
            unsafe { zeros.write_bytes(0, pixel) };
            for part in partition::parts(self.tiles.tiles(), at_once) {
                for (i, tile) in part.clone().enumerate() {
                    let pixels = self.tiles.pixels(phase, tile, mem.lhs, zeros);
                    let dy = self.gradient(tile, mem.rhs, zeros, cols.start);
                    // SAFETY: the pixels exist or are zeros; each tile has its own part of the
                    // scratch memory.
                    unsafe {
                        (V::STRIDE2.input)(&pixels, inputs, images.add(i * inputs), image_plane);
                        (V::STRIDE2.gradient)(&dy, cols.len(), gradients.add(i * width), gradient_plane);
                    }
                }
                for plane in 0..PLANES {
                    for col in (0..width).step_by(V::MAX_COLS) {
                        let tile = Tile {
                            images: 1,
                            segments: 1,
                            steps: part.len(),
                            a: images.wrapping_add(plane * image_plane),
                            a_stride: inputs,
                            a_segment: 0,
                            a_image: 0,
                            b: gradients.wrapping_add(plane * gradient_plane + col),
                            b_step: width,
                            b_segment: 0,
                            b_image: 0,
                            c: sums.wrapping_add(plane * inputs * width + col),
                            c_row: width,
                            cols: (width - col).min(V::MAX_COLS),
                            add: part.start > 0,
                            prefetch: Prefetch::none(gradients),
                        };
                        // SAFETY: the tiles of the image and of the gradient are transformed.
                        unsafe { tile.run::<V>(inputs, false) }
                    }
                }
            }
            let outputs = self.conv.out_channels;
            let taps = self.tiles.taps(phase);
            for channel in 0..inputs {
                let to = taps.map(|[y, x]| {
                    let row = (y * TAPS + x) * inputs + channel;
                    mem.out.wrapping_add(row * outputs + cols.start)
                });
                // SAFETY: the sums are complete, and this chunk owns these columns of the taps.
                unsafe {
                    (V::STRIDE2.taps)(sums.add(channel * width), inputs * width, cols.len(), &to);
                }
            }
            self.blocks(chunk).for_each(finish);
        }

        /// Returns the pixels of the output gradient in a tile, from column `col` on.
        fn gradient(
            &self,
            tile: usize,
            data: *const f32,
            zeros: *const f32,
            col: usize,
        ) -> [*const f32; TILE * TILE] {
            let [height, width] = self.conv.out_size;
            let (image, y, x) = self.tiles.position(tile);
            std::array::from_fn(|i| {
                let (y, x) = (y * TILE + i / TILE, x * TILE + i % TILE);
                let pixel = (image * height + y) * width + x;
                let inside = y < height && x < width;
                if inside { data.wrapping_add(pixel * self.conv.out_channels + col) } else { zeros }
            })
        }
    }
}
