//! Convolutions and their input gradients by Winograd F(2x2, 3x3) and F(4x4, 3x3); see
//! [`winograd_tiles`](crate::conv::winograd_tiles).
//!
//! The first phase transforms the filter. Each chunk of the second transforms the input tiles of
//! some tile rows, multiplies, and transforms the products back.

use std::ops::Range;

use crate::Block;
use crate::conv::correlation::{Correlation, LANES, panel_cols};
use crate::conv::winograd_tiles::{TileSize, WinogradTiles, plane};
use crate::partition;

/// Outputs per chunk, if there are enough for all threads.
const CHUNK_PIXELS: usize = 512;
/// Tiles transformed at a time: few, so that they and their products stay in near caches while the
/// filter streams from further away; more, if it comes from very far.
const FEW_TOGETHER: usize = 28;
const FEW_TOGETHER_FOUR: usize = 14;
const MANY_TOGETHER: usize = 64;
/// A filter larger than this leaves too little room in the L2 cache; with tiles of 4x4 outputs, one
/// larger than the second does not stay in the L3 cache.
const NEAR_BYTES: usize = 512 << 10;
const FAR_BYTES: usize = 16 << 20;
/// Input channels that are summed at a time with tiles of 4x4 outputs.
#[cfg(target_arch = "x86_64")]
const MOST_TERMS: usize = 128;
/// Enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;

/// A convolution, or its input gradient, divided into tiles and chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Winograd {
    tiles: WinogradTiles,
    pub(crate) chunks: usize,
}

impl Winograd {
    /// Divides `work` into tiles and chunks. [`Algorithm`](super::choose::Algorithm) decides when
    /// Winograd pays off.
    pub(crate) fn new(work: &Correlation, size: TileSize) -> Winograd {
        let tiles = WinogradTiles::new(work, size);
        let row_pixels = size.outputs() * size.outputs() * tiles.count[1];
        let chunks = tiles.rows().div_ceil((CHUNK_PIXELS / row_pixels).max(1));
        Winograd { tiles, chunks: chunks.max(tiles.rows().min(ENOUGH_CHUNKS)) }
    }

    pub(crate) fn tile_size(&self) -> TileSize {
        self.tiles.size
    }

    /// Returns the tile rows of a chunk.
    fn rows(&self, chunk: usize) -> Range<usize> {
        partition::part(self.tiles.rows(), self.chunks, chunk)
    }

    /// Returns the block of the output that a chunk computes.
    pub(crate) fn block(&self, chunk: usize) -> Block {
        let rows = self.rows(chunk);
        Block {
            rows: self.tiles.first_output(rows.start)..self.tiles.first_output(rows.end),
            cols: 0..self.tiles.work.out_channels(),
        }
    }

    fn panel_cols(&self) -> usize {
        panel_cols(self.tiles.work.out_channels())
    }

    /// Returns the number of panels of the filter, which are transformed independently.
    pub(crate) fn panels(&self) -> usize {
        self.tiles.work.out_channels().div_ceil(self.panel_cols())
    }

    /// Returns the number of elements of the transformed filter.
    pub(crate) fn shared_len(&self) -> usize {
        let work = &self.tiles.work;
        self.tiles.size.planes() * work.in_channels() * work.out_channels().next_multiple_of(LANES)
    }

    fn tiles_at_once(&self) -> usize {
        let bytes = self.shared_len() * size_of::<f32>();
        match self.tiles.size {
            TileSize::Two if bytes <= NEAR_BYTES => FEW_TOGETHER,
            TileSize::Four if bytes <= FAR_BYTES => FEW_TOGETHER_FOUR,
            _ => MANY_TOGETHER,
        }
    }

    /// Returns the number of input channels that are summed at a time. The transforms of F(4x4, 3x3)
    /// amplify the rounding error of long sums.
    #[cfg(target_arch = "x86_64")]
    fn terms_at_once(&self) -> usize {
        match self.tiles.size {
            TileSize::Two => usize::MAX,
            TileSize::Four => MOST_TERMS,
        }
    }

    /// Returns the number of elements of scratch memory: a chunk's transformed tiles and their
    /// products, or the taps of some columns of the filter.
    pub(crate) fn scratch_len(&self) -> usize {
        let (at_once, inputs) = (self.tiles_at_once(), self.tiles.work.in_channels());
        let tiles = plane(at_once, inputs) + plane(at_once, self.panel_cols());
        (9 * inputs * self.panel_cols()).max(self.tiles.size.planes() * tiles)
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::conv::prefetcher::Prefetcher;
    use crate::conv::winograd_tiles::Position;
    use crate::conv::winograd_transform::OutputTile;
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Prefetch, Tile};
    use crate::gemm::pack;

    impl Winograd {
        /// Transforms one panel of the filter, plane after plane; in parts, if it is wider than a tile.
        ///
        /// # Safety
        /// The filter `w` is valid, `shared` and `scratch` have the required sizes, the CPU
        /// supports the instructions of `V`.
        pub(crate) unsafe fn pack<V: WinogradKernels>(
            &self,
            panel: usize,
            w: *const f32,
            shared: *mut f32,
            scratch: &mut [u8],
        ) {
            let WinogradTiles { work, size, .. } = &self.tiles;
            let (inputs, outputs) = (work.in_channels(), work.out_channels());
            let cols = panel * self.panel_cols()..((panel + 1) * self.panel_cols()).min(outputs);
            let (y, x) = (work.axis(0, 0), work.axis(1, 0));
            let taps = scratch.as_mut_ptr().cast::<f32>();
            for col in cols.clone().step_by(V::MAX_COLS) {
                let here = (cols.end - col).min(V::MAX_COLS);
                let width = pack::width(here, V::LANES);
                // SAFETY: one tap of the filter after another, and its part of the scratch memory.
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
                    let (len, to) = (inputs * width, shared.add(col * size.planes() * inputs));
                    (V::TRANSFORMS.of(*size).filter)(taps, len, to, len);
                }
            }
        }

        /// Computes the outputs of one chunk.
        ///
        /// # Safety
        /// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`;
        /// the filter is packed.
        pub(crate) unsafe fn run<V: WinogradKernels>(
            &self,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let (inputs, outputs) = (self.tiles.work.in_channels(), self.tiles.work.out_channels());
            let (rows, width) = (self.rows(chunk), self.tiles.count[1]);
            let (planes, transforms) = (self.tiles.size.planes(), V::TRANSFORMS.of(self.tiles.size));
            let images = scratch.as_mut_ptr().cast::<f32>();
            for part in partition::parts(rows.len() * width, self.tiles_at_once()) {
                let (tiles, image_plane) = (part.len(), plane(part.len(), inputs));
                // Tile rows of these tiles, and of the next ones.
                let [here, next] = [part.start, part.end]
                    .map(|tile| rows.start + tile / width..rows.start + (tile + tiles).div_ceil(width));
                let outgoing = self.tiles.first_output(here.start)..self.tiles.first_output(here.end);
                let incoming = self.tiles.new_inputs(&next);
                let mut incoming = Prefetcher::new(mem.lhs, incoming, inputs, 0..inputs, planes);
                let first = self.tiles.position(rows.start + part.start / width, part.start % width);
                let mut at = first;
                for tile in 0..tiles {
                    let from = self.tiles.input_tile(at, mem.lhs);
                    // SAFETY: the tile is the image's; each has its own part of the scratch memory.
                    unsafe { (transforms.input)(&from, images.add(tile * inputs), image_plane) }
                    at = self.tiles.next(at);
                }
                let products = images.wrapping_add(planes * image_plane);
                for col in (0..outputs).step_by(self.panel_cols().min(V::MAX_COLS)) {
                    let cols = (outputs - col).min(self.panel_cols().min(V::MAX_COLS));
                    let panel_width = pack::width(cols, V::LANES);
                    let product_plane = plane(tiles, panel_width);
                    let filter = mem.shared.cast::<f32>().wrapping_add(col * planes * inputs);
                    let mut outgoing =
                        Prefetcher::new(mem.out, outgoing.clone(), outputs, col..col + cols, planes);
                    for plane in 0..planes {
                        outgoing.step();
                        incoming.step();
                        for terms in partition::parts(inputs, self.terms_at_once()) {
                            let tile = Tile {
                                images: 1,
                                segments: 1,
                                steps: terms.len(),
                                a: images.wrapping_add(plane * image_plane + terms.start),
                                a_stride: inputs,
                                a_segment: 0,
                                a_image: 0,
                                b: filter.wrapping_add((plane * inputs + terms.start) * panel_width),
                                b_step: panel_width,
                                b_segment: 0,
                                b_image: 0,
                                c: products.wrapping_add(plane * product_plane),
                                c_row: panel_width,
                                cols: panel_width,
                                add: terms.start > 0,
                                prefetch: Prefetch::none(filter),
                            };
                            // SAFETY: tiles and filter are transformed, and the scratch memory has
                            // room for the products.
                            unsafe { tile.run::<V>(tiles, true) }
                        }
                    }
                    let mut at = first;
                    for tile in 0..tiles {
                        let to = self.output_tile(at, col, cols, mem);
                        // SAFETY: a tile of the output, and its products.
                        unsafe {
                            (transforms.output)(&to, products.add(tile * panel_width), product_plane);
                        }
                        at = self.tiles.next(at);
                    }
                }
            }
            finish(self.block(chunk));
        }

        /// Returns some columns of a tile of the output.
        fn output_tile(&self, at: Position, col: usize, cols: usize, mem: Operands<f32>) -> OutputTile {
            let WinogradTiles { work, size, .. } = &self.tiles;
            let ([height, width], outputs, side) = (work.out_size(), work.out_channels(), size.outputs());
            let (y, x) = (at.y * side, at.x * side);
            let pixel = (at.image * height + y) * width + x;
            OutputTile {
                first: mem.out.wrapping_add(pixel * outputs + col),
                row: width * outputs,
                pixel: outputs,
                size: [(height - y).min(side), (width - x).min(side)],
                cols,
                bias: mem.bias.at(col),
            }
        }
    }
}
