//! Convolutions and their gradients by the input in [squares](crate::conv::winograd_transform): the filter is brought to the other form in
//! a first phase, and each chunk of the second does so with some rows of squares, multiplies, and comes back.

use std::ops::Range;

use crate::Block;
use crate::conv::correlation::{Correlation, PACK_COLS};
use crate::conv::winograd_transform::{PLANES, TILE, WinogradTiles, plane};
use crate::partition;

/// WinogradTiles of a chunk, if there are enough for all threads.
const CHUNK_TILES: usize = 128;
/// WinogradTiles that are in the other form at a time: few, so that they and their products stay in the nearest caches while the
/// filter comes from the next one; more, if the filter comes from further away.
const FEW_TOGETHER: usize = 28;
const MANY_TOGETHER: usize = 64;
/// A filter larger than this leaves too little room in the second-level cache.
const NEAR_BYTES: usize = 512 << 10;
/// Chunks that are enough for all threads.
const ENOUGH_CHUNKS: usize = 16;

/// A convolution, or its gradient by the input, in squares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Winograd {
    tiles: WinogradTiles,
    pub(crate) chunks: usize,
}

impl Winograd {
    /// `work` cut into tiles and chunks. [`Algorithm`](super::choose::Algorithm) says when that pays.
    pub(crate) fn new(work: &Correlation) -> Winograd {
        let tiles = WinogradTiles::new(work);
        let chunks = tiles.rows().div_ceil((CHUNK_TILES / tiles.count[1]).max(1));
        Winograd { tiles, chunks: chunks.max(tiles.rows().min(ENOUGH_CHUNKS)) }
    }

    /// The rows of squares of a chunk.
    fn rows(&self, chunk: usize) -> Range<usize> {
        partition::part(self.tiles.rows(), self.chunks, chunk)
    }

    /// The rectangle of the output that a chunk computes.
    pub(crate) fn block(&self, chunk: usize) -> Block {
        let WinogradTiles { work, count, .. } = &self.tiles;
        let [height, width] = work.out_size();
        let pixel = |row: usize| (row / count[0] * height + (row % count[0] * TILE).min(height)) * width;
        let rows = self.rows(chunk);
        Block { rows: pixel(rows.start)..pixel(rows.end), cols: 0..work.out_channels() }
    }

    /// Elements of the filter in the other form.
    pub(crate) fn shared_len(&self) -> usize {
        let work = &self.tiles.work;
        PLANES * work.in_channels() * work.out_channels().next_multiple_of(PACK_COLS)
    }

    fn together(&self) -> usize {
        if self.shared_len() * size_of::<f32>() > NEAR_BYTES { MANY_TOGETHER } else { FEW_TOGETHER }
    }

    /// Elements of working memory: zeros for a pixel beyond the edges, and a chunk's squares with their products; or the
    /// taps of some columns of the filter.
    pub(crate) fn scratch_len(&self) -> usize {
        let (together, inputs) = (self.together(), self.tiles.work.in_channels());
        let squares = plane(together, inputs) + plane(together, PACK_COLS);
        (9 * inputs * PACK_COLS).max(inputs.next_multiple_of(16) + PLANES * squares)
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::conv::kernel_table::ConvKernels;
    use crate::conv::winograd_transform::transforms::OutputTile;
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Ahead, Tile};
    use crate::gemm::pack;

    impl Winograd {
        /// Brings one group of columns of the filter to the other form: panel after panel, in each place after place.
        ///
        /// # Safety
        /// The filter `w` is valid, `shared` and `scratch` have the sizes asked for, the machine has the instructions of
        /// `V`.
        pub(crate) unsafe fn pack<V: ConvKernels>(
            &self,
            group: usize,
            w: *const f32,
            shared: *mut f32,
            scratch: &mut [u8],
        ) {
            let work = &self.tiles.work;
            let (inputs, outputs) = (work.in_channels(), work.out_channels());
            let cols = group * PACK_COLS..((group + 1) * PACK_COLS).min(outputs);
            let (y, x) = (work.axis(0, 0), work.axis(1, 0));
            let taps = scratch.as_mut_ptr().cast::<f32>();
            for col in cols.clone().step_by(2 * V::LANES) {
                let here = (cols.end - col).min(2 * V::LANES);
                let width = pack::width(here, V::LANES);
                // SAFETY: one tap of the filter after another, and the place of each in the scratch memory.
                unsafe {
                    for tap in 0..9 {
                        let from = w.add((y.tap(tap / 3) * 3 + x.tap(tap % 3)) * inputs * outputs);
                        let to = taps.add(tap * inputs * width);
                        match work.backward {
                            false => pack::pack_rows(from.add(col), outputs, inputs, here, to, width),
                            true => {
                                pack::pack_columns(from.add(col * inputs), inputs, inputs, here, to, width)
                            }
                        }
                    }
                    let (len, to) = (inputs * width, shared.add(col * PLANES * inputs));
                    (V::TRANSFORMS.filter)(taps, len, to, len);
                }
            }
        }

        /// Computes the outputs of one chunk.
        ///
        /// # Safety
        /// As for [`crate::Contract::run_f32`], with the machine having the instructions of `V`; the filter is packed.
        pub(crate) unsafe fn run<V: ConvKernels>(
            &self,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let (inputs, outputs) = (self.tiles.work.in_channels(), self.tiles.work.out_channels());
            let (rows, width) = (self.rows(chunk), self.tiles.count[1]);
            let zeros = scratch.as_mut_ptr().cast::<f32>();
            // SAFETY: the scratch memory begins with room for a pixel.
            unsafe { zeros.write_bytes(0, inputs) };
            let images = zeros.wrapping_add(inputs.next_multiple_of(16));
            for part in partition::parts(rows.len() * width, self.together()) {
                let (squares, image_plane) = (part.len(), plane(part.len(), inputs));
                let place = |square: usize| {
                    let at = part.start + square;
                    (rows.start + at / width, at % width)
                };
                for square in 0..squares {
                    let (row, x) = place(square);
                    let pixels = self.tiles.pixels(row, x, mem.lhs, zeros);
                    // SAFETY: the pixels are the image's, or zeros; each square has its place in the scratch memory.
                    unsafe {
                        (V::TRANSFORMS.input)(&pixels, inputs, images.add(square * inputs), image_plane)
                    }
                }
                let products = images.wrapping_add(PLANES * image_plane);
                for col in (0..outputs).step_by(2 * V::LANES) {
                    let cols = (outputs - col).min(2 * V::LANES);
                    let panel_width = pack::width(cols, V::LANES);
                    let product_plane = plane(squares, panel_width);
                    let filter = mem.shared.cast::<f32>().wrapping_add(col * PLANES * inputs);
                    for place in 0..PLANES {
                        let tile = Tile {
                            images: 1,
                            segments: 1,
                            steps: inputs,
                            a: images.wrapping_add(place * image_plane),
                            a_stride: inputs,
                            a_segment: 0,
                            a_image: 0,
                            b: filter.wrapping_add(place * inputs * panel_width),
                            b_step: panel_width,
                            b_segment: 0,
                            b_image: 0,
                            c: products.wrapping_add(place * product_plane),
                            c_row: panel_width,
                            cols: panel_width,
                            add: false,
                            ahead: Ahead::none(filter),
                        };
                        // SAFETY: the squares and the filter are in the other form, and products have their room.
                        unsafe { tile.run::<V>(squares, true) }
                    }
                    for square in 0..squares {
                        let (row, x) = place(square);
                        let at = self.square(row, x, col, cols, mem);
                        // SAFETY: a square of the output, and its products.
                        unsafe {
                            (V::TRANSFORMS.output)(&at, products.add(square * panel_width), product_plane);
                        }
                    }
                }
            }
            finish(self.block(chunk));
        }

        /// Some columns of square `x` of row `row` of the output.
        fn square(&self, row: usize, x: usize, col: usize, cols: usize, mem: Operands<f32>) -> OutputTile {
            let WinogradTiles { work, count, .. } = &self.tiles;
            let ([height, width], outputs) = (work.out_size(), work.out_channels());
            let (image, y) = (row / count[0], row % count[0] * TILE);
            let pixel = (image * height + y) * width + x * TILE;
            OutputTile {
                first: mem.out.wrapping_add(pixel * outputs + col),
                row: width * outputs,
                pixel: outputs,
                size: [(height - y).min(TILE), (width - x * TILE).min(TILE)],
                cols,
                bias: mem.bias.at(col),
            }
        }
    }
}
