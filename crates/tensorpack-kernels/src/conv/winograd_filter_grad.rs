//! Filter gradients by Winograd F(2x2, 3x3) and F(4x4, 3x3); see
//! [`winograd_tiles`](crate::conv::winograd_tiles).
//!
//! After the tiles of the input and of the output gradient are transformed, the sum over all tiles is
//! one matrix product for each plane. Input and output channels are divided into blocks whose sums
//! stay in the L2 cache, and each pair of blocks transforms its channels again. The tile rows are
//! divided among groups, each with its own partial sums, unless there are enough blocks for all
//! threads; a second phase adds those in order and transforms the result back.

use std::ops::Range;

use crate::Block;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::Correlation;
use crate::conv::winograd_tiles::{TileSize, WinogradTiles, plane};
use crate::partition;

/// Bytes of transformed tiles at a time.
const PART_BYTES: usize = 320 << 10;
/// Enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;
/// Elements of the widest vector, and the most of them in a block of channels.
const LANES: usize = 16;
const BLOCK_VECTORS: usize = 4;
/// Input channels that a chunk of the second phase sums.
const SUM_CHANNELS: usize = 4;

/// The gradient with respect to a 3x3 filter, divided into tiles, groups and blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradFilterGrad {
    tiles: WinogradTiles,
    /// Groups of tile rows.
    groups: usize,
    /// Blocks of input and of output channels.
    blocks: [usize; 2],
}

/// A group, and blocks of input and of output channels.
struct Part {
    group: usize,
    inputs: Range<usize>,
    outputs: Range<usize>,
}

impl Part {
    /// Returns the number of output channels, rounded up to whole vectors.
    fn cols(&self) -> usize {
        self.outputs.len().next_multiple_of(LANES)
    }
}

/// Returns the number of blocks of `channels` channels.
fn blocks(channels: usize) -> usize {
    channels.div_ceil(BLOCK_VECTORS * LANES)
}

/// Returns the channels of a block. Blocks are whole vectors, and about equal.
fn channels(channels: usize, block: usize) -> Range<usize> {
    let vectors = partition::part(channels.div_ceil(LANES), blocks(channels), block);
    vectors.start * LANES..(vectors.end * LANES).min(channels)
}

impl WinogradFilterGrad {
    /// Divides the work. [`Algorithm`](super::choose::Algorithm) decides when Winograd pays off.
    pub(crate) fn new(conv: &Conv2d, size: TileSize) -> WinogradFilterGrad {
        let tiles = WinogradTiles::new(&Correlation { conv: *conv, backward: false }, size);
        let blocks = [conv.in_channels, conv.out_channels].map(blocks);
        let groups = ENOUGH_CHUNKS.div_ceil(blocks[0] * blocks[1]).min(tiles.rows());
        WinogradFilterGrad { tiles, groups, blocks }
    }

    pub(crate) fn phases(&self) -> usize {
        if self.groups == 1 { 1 } else { 2 }
    }

    pub(crate) fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 => self.groups * self.blocks[0] * self.blocks[1],
            _ => self.conv().in_channels.div_ceil(SUM_CHANNELS),
        }
    }

    fn conv(&self) -> &Conv2d {
        &self.tiles.work.conv
    }

    /// Returns what a chunk of the first phase computes.
    fn part(&self, chunk: usize) -> Part {
        let [down, across] = self.blocks;
        Part {
            group: chunk / (down * across),
            inputs: channels(self.conv().in_channels, chunk / across % down),
            outputs: channels(self.conv().out_channels, chunk % across),
        }
    }

    /// Returns the channels of the largest blocks, rounded up to whole vectors.
    fn block_sizes(&self) -> [usize; 2] {
        let vectors = |channels: usize, blocks: usize| channels.div_ceil(LANES).div_ceil(blocks) * LANES;
        [vectors(self.conv().in_channels, self.blocks[0]), vectors(self.conv().out_channels, self.blocks[1])]
    }

    /// Returns the number of elements of a partial result of a block.
    fn partial_len(&self) -> usize {
        let [inputs, outputs] = self.block_sizes();
        self.tiles.size.planes() * inputs * outputs
    }

    pub(crate) fn shared_len(&self) -> usize {
        if self.phases() == 1 { 0 } else { self.chunks(0) * self.partial_len() }
    }

    /// Returns the number of tile rows transformed at a time.
    fn rows_at_once(&self) -> usize {
        let [inputs, outputs] = self.block_sizes();
        let row_bytes =
            self.tiles.size.planes() * self.tiles.count[1] * (inputs + outputs) * size_of::<f32>();
        (PART_BYTES / row_bytes).clamp(1, self.tiles.rows().div_ceil(self.groups))
    }

    /// Returns the number of elements of scratch memory: tiles of the image and of the gradient, and
    /// the sums if they are not shared.
    pub(crate) fn scratch_len(&self) -> usize {
        let (tiles, [inputs, outputs]) = (self.rows_at_once() * self.tiles.count[1], self.block_sizes());
        let sums = if self.phases() == 1 { self.partial_len() } else { 0 };
        self.tiles.size.planes() * (plane(tiles, inputs) + plane(tiles, outputs)) + sums
    }

    /// Returns the input channels of a chunk of the second phase.
    fn sum_channels(&self, chunk: usize) -> Range<usize> {
        chunk * SUM_CHANNELS..((chunk + 1) * SUM_CHANNELS).min(self.conv().in_channels)
    }

    /// Returns the blocks of the output that a chunk of the last phase completes, one per tap.
    pub(crate) fn blocks(&self, chunk: usize) -> impl Iterator<Item = Block> + use<> {
        let c = *self.conv();
        let (rows, cols) = if self.phases() == 1 {
            let part = self.part(chunk);
            (part.inputs, part.outputs)
        } else {
            (self.sum_channels(chunk), 0..c.out_channels)
        };
        (0..9).map(move |tap| Block {
            rows: tap * c.in_channels + rows.start..tap * c.in_channels + rows.end,
            cols: cols.clone(),
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::conv::prefetcher::Prefetcher;
    use crate::conv::winograd_transform::Partials;
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
            let shared = mem.shared.cast::<f32>();
            if phase == 0 {
                let part = self.part(chunk);
                let scratch = scratch.as_mut_ptr().cast::<f32>();
                let (sums, tiles) = if self.phases() == 1 {
                    (scratch, scratch.wrapping_add(self.partial_len()))
                } else {
                    (shared.wrapping_add(chunk * self.partial_len()), scratch)
                };
                let rows = partition::part(self.tiles.rows(), self.groups, part.group);
                for some in partition::parts(rows.len(), self.rows_at_once()) {
                    let here = rows.start + some.start..rows.start + some.end;
                    // SAFETY: each chunk has its own partial result; the rest is guaranteed by the
                    // caller.
                    unsafe { self.add_rows::<V>(&part, here, mem, sums, tiles, some.start > 0) }
                }
                if self.phases() == 1 {
                    for channel in part.inputs.clone() {
                        // SAFETY: the sums are complete, and this chunk owns these channels of the
                        // output.
                        unsafe { self.taps::<V>(&part, channel, sums, mem) }
                    }
                    self.blocks(chunk).for_each(finish);
                }
                return;
            }
            let [down, across] = self.blocks;
            for channel in self.sum_channels(chunk) {
                // The partial results of the first group come first.
                for part in 0..down * across {
                    let (sums, part) = (shared.wrapping_add(part * self.partial_len()), self.part(part));
                    if part.inputs.contains(&channel) {
                        // SAFETY: all partial results are complete, and this chunk owns the channel's
                        // rows of the output.
                        unsafe { self.taps::<V>(&part, channel, sums, mem) }
                    }
                }
            }
            self.blocks(chunk).for_each(finish);
        }

        /// Adds up the sums of all groups, the first of which are at `sums`, and writes the gradients
        /// of the taps of an input channel.
        ///
        /// # Safety
        /// Same as [`WinogradFilterGrad::run`].
        unsafe fn taps<V: WinogradKernels>(
            &self,
            part: &Part,
            channel: usize,
            sums: *const f32,
            mem: Operands<f32>,
        ) {
            let c = self.conv();
            let sums = Partials {
                first: sums.wrapping_add((channel - part.inputs.start) * part.cols()),
                plane: part.inputs.len() * part.cols(),
                part: self.blocks[0] * self.blocks[1] * self.partial_len(),
                parts: self.groups,
                cols: part.outputs.len(),
            };
            let to = mem.out.wrapping_add(channel * c.out_channels + part.outputs.start);
            // SAFETY: guaranteed by the caller.
            unsafe {
                (V::TRANSFORMS.of(self.tiles.size).taps)(&sums, to, c.in_channels * c.out_channels);
            }
        }

        /// Sums the products of some tile rows, and adds them to `sums` or overwrites it.
        ///
        /// # Safety
        /// Same as [`WinogradFilterGrad::run`].
        unsafe fn add_rows<V: WinogradKernels>(
            &self,
            part: &Part,
            rows: Range<usize>,
            mem: Operands<f32>,
            sums: *mut f32,
            scratch: *mut f32,
            add: bool,
        ) {
            let (width, inputs, cols) = (self.tiles.count[1], part.inputs.len(), part.cols());
            let tiles = rows.len() * width;
            let (planes, transforms) = (self.tiles.size.planes(), V::TRANSFORMS.of(self.tiles.size));
            let (image_plane, gradient_plane) = (plane(tiles, inputs), plane(tiles, cols));
            let (images, gradients) = (scratch, scratch.wrapping_add(planes * image_plane));
            let mut at = self.tiles.position(rows.start, 0);
            for tile in 0..tiles {
                let image = self.tiles.input_tile(at, mem.lhs).channels(&part.inputs);
                let gradient = self.tiles.gradient_tile(at, mem.rhs).channels(&part.outputs);
                at = self.tiles.next(at);
                // SAFETY: the tiles are those of the operands; each has its own part of the scratch
                // memory.
                unsafe {
                    (transforms.input)(&image, images.add(tile * inputs), image_plane);
                    (transforms.gradient)(&gradient, gradients.add(tile * cols), gradient_plane);
                }
            }
            // Meanwhile, the next tile rows are fetched.
            let next = rows.end..(rows.end + rows.len()).min(self.tiles.rows());
            let c = *self.conv();
            let mut next_inputs = Prefetcher::new(
                mem.lhs,
                self.tiles.new_inputs(&next),
                c.in_channels,
                part.inputs.clone(),
                planes,
            );
            let outputs = self.tiles.first_output(next.start)..self.tiles.first_output(next.end);
            let mut next_outputs =
                Prefetcher::new(mem.rhs, outputs, c.out_channels, part.outputs.clone(), planes);
            for plane in 0..planes {
                next_inputs.step();
                next_outputs.step();
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
    }
}
