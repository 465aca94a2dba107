//! Matrix products and convolutions of 8-bit integers.

use super::tile::{GROUP, PANEL, ROWS, Tile};
use crate::conv::Conv2d;
use crate::gemm::contract::{Block, FilterPacking, Operands, PackedForm};
use crate::simd::per_isa::per_isa;
use crate::{Isa, partition};
use tensorpack_tensor::{Error, Result};

/// The byte that stands for 0.
const ZERO: u8 = 128;
/// Maximum number of terms of a sum: more could overflow 32 bits.
const MAX_TERMS: usize = 1 << 16;
/// Maximum size of the weights that a chunk reads again and again: they stay in the L2 cache.
const CHUNK_WEIGHTS: usize = 256 << 10;
/// Approximate number of products of a chunk: some tens of microseconds of work.
const CHUNK_PRODUCTS: usize = 4_000_000;
/// Maximum number of output elements that are finished together, while they are in the L1 cache.
const FINISHED: usize = 6144;

/// A matrix product or convolution of bytes that stand for integers from -128 to 127: a byte `b`
/// for `b - 128`. Sums are exact, and each is rounded to f32 once, so the result is the same for all
/// instruction sets.
///
/// Elements beyond the edges of an image are zero.
#[derive(Clone, Copy, Debug)]
pub struct Int8Contract {
    conv: Conv2d,
}

impl Int8Contract {
    /// A convolution of NHWC images with HWIO filters.
    pub fn conv2d(conv: Conv2d) -> Int8Contract {
        Int8Contract { conv }
    }

    /// A product of matrices `[m, k]` and `[k, n]`.
    pub fn matmul(m: usize, n: usize, k: usize) -> Int8Contract {
        let conv = Conv2d {
            batch: m,
            in_size: [1; 2],
            in_channels: k,
            out_channels: n,
            kernel: [1; 2],
            stride: [1; 2],
            dilation: [1; 2],
            pad_low: [0; 2],
            out_size: [1; 2],
            exact: true,
        };
        Int8Contract { conv }
    }

    /// Checks that no product of the sizes overflows, and no sum. Call this before any other method.
    pub fn check(&self) -> Result<()> {
        let c = &self.conv;
        c.check_sizes()?;
        let terms = c.kernel[0].saturating_mul(c.kernel[1]).saturating_mul(c.in_channels);
        if terms > MAX_TERMS {
            return Err(Error::argument(format!(
                "a sum of {terms} products of bytes could overflow; at most {MAX_TERMS} are supported"
            )));
        }
        if !c.in_channels.is_multiple_of(GROUP) {
            return Err(Error::argument(format!(
                "products of bytes are added up in groups of {GROUP}, which do not fit {} input channels",
                c.in_channels
            )));
        }
        Ok(())
    }

    /// Returns the rows and columns of the output as a dense row-major matrix.
    pub fn out_matrix(&self) -> (usize, usize) {
        let c = &self.conv;
        (c.batch * c.out_size[0] * c.out_size[1], c.out_channels)
    }

    /// Returns the number of elements of the left operand.
    pub fn lhs_len(&self) -> usize {
        let c = &self.conv;
        c.batch * c.in_size[0] * c.in_size[1] * c.in_channels
    }

    /// Returns the number of elements of the right operand.
    pub fn rhs_len(&self) -> usize {
        self.terms() * self.conv.out_channels
    }

    fn taps(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1]
    }

    fn terms(&self) -> usize {
        self.taps() * self.conv.in_channels
    }

    fn panels(&self) -> usize {
        self.conv.out_channels.div_ceil(PANEL)
    }

    /// Returns the number of phases: weights are packed, then multiplied.
    pub fn phases(&self) -> usize {
        2
    }

    /// Returns the number of blocks of rows and of panels that chunks are made of.
    fn blocks(&self) -> (usize, usize) {
        let (rows, cols) = self.out_matrix();
        let col_blocks = (self.panels() * PANEL * self.terms()).div_ceil(CHUNK_WEIGHTS);
        let col_blocks = col_blocks.clamp(1, self.panels().max(1));
        let products = (rows * cols).saturating_mul(self.terms());
        let row_blocks =
            (products / col_blocks).div_ceil(CHUNK_PRODUCTS).clamp(1, rows.div_ceil(ROWS).max(1));
        (row_blocks, col_blocks)
    }

    /// Returns the number of independent chunks of a phase.
    pub fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 => self.panels(),
            _ => {
                let (row_blocks, col_blocks) = self.blocks();
                row_blocks * col_blocks
            }
        }
    }

    fn weights_bytes(&self) -> usize {
        self.panels() * PANEL * self.terms()
    }

    fn offsets_bytes(&self) -> usize {
        self.panels() * PANEL * size_of::<i32>()
    }

    /// Returns the bytes of memory that all chunks share: the packed weights, what is subtracted
    /// from each column, and a pixel of zeros. Its initial contents are ignored.
    pub fn shared_bytes(&self) -> usize {
        self.weights_bytes() + self.offsets_bytes() + self.conv.in_channels
    }

    /// Returns the bytes of scratch memory each thread needs. Its initial contents are ignored.
    pub fn scratch_bytes(&self) -> usize {
        self.taps() * ROWS * size_of::<*const u8>()
    }

    /// Returns whether this contraction supports [`Operands::bias`]: it does not, since what is added
    /// to a sum comes after its scales.
    pub fn takes_bias(&self) -> bool {
        false
    }

    /// Returns how the first phase packs the right operand, which is all it does; see
    /// [`Contract::packing`](crate::Contract::packing).
    pub fn packing(&self) -> FilterPacking {
        let Conv2d { kernel, in_channels, out_channels, .. } = self.conv;
        FilterPacking { sizes: [kernel[0], kernel[1], in_channels, out_channels], form: PackedForm::Int8 }
    }

    /// Returns the number of operations: additions plus multiplications.
    pub fn flops(&self) -> f64 {
        let (rows, cols) = self.out_matrix();
        2.0 * rows as f64 * cols as f64 * self.terms() as f64
    }

    /// Runs one chunk, and calls `finish` for each block of the output once it is final, like
    /// [`Contract::run_f32`](crate::Contract::run_f32).
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`](crate::Contract::run_f32), with the memory sizes and chunks of
    /// this contraction.
    pub unsafe fn run(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<u8, f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let offsets = mem.shared.wrapping_add(self.weights_bytes()).cast::<i32>();
        let zeros = mem.shared.wrapping_add(self.weights_bytes() + self.offsets_bytes());
        if phase == 0 {
            let bytes = PANEL * self.terms();
            // SAFETY: each chunk writes its own panel and offsets, and the first one the zeros; the
            // caller guarantees the operand.
            unsafe {
                let panel = std::slice::from_raw_parts_mut(mem.shared.add(chunk * bytes).cast(), bytes);
                let offsets = std::slice::from_raw_parts_mut(offsets.add(chunk * PANEL), PANEL);
                let weights = std::slice::from_raw_parts(mem.rhs, self.rhs_len());
                pack(isa, weights, self.conv.out_channels, chunk * PANEL, panel, offsets);
                if chunk == 0 {
                    zeros.write_bytes(ZERO, self.conv.in_channels);
                }
            }
            return;
        }
        let (row_blocks, col_blocks) = self.blocks();
        let (all_rows, all_cols) = self.out_matrix();
        let panels = partition::part(self.panels(), col_blocks, chunk % col_blocks);
        let rows = partition::part(all_rows, row_blocks, chunk / col_blocks);
        let cols = panels.start * PANEL..(panels.end * PANEL).min(all_cols);
        let band = (FINISHED / cols.len().max(1)).next_multiple_of(ROWS);
        // SAFETY: the scratch memory has room for this many pointers, and is aligned.
        let pointers = unsafe {
            std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<*const u8>(), self.taps() * ROWS)
        };
        for start in rows.clone().step_by(band) {
            let band = start..rows.end.min(start + band);
            for row in band.clone().step_by(ROWS) {
                let count = ROWS.min(band.end - row);
                let pointers = &mut pointers[..self.taps() * count];
                self.point(mem.lhs, zeros, row, count, pointers);
                for panel in panels.clone() {
                    let tile = Tile {
                        rows: count,
                        lhs: pointers,
                        groups: self.conv.in_channels / GROUP,
                        weights: mem.shared.wrapping_add(panel * PANEL * self.terms()).cast(),
                        offsets: offsets.wrapping_add(panel * PANEL),
                        out: mem.out.wrapping_add(row * all_cols + panel * PANEL),
                        stride: all_cols,
                        cols: PANEL.min(all_cols - panel * PANEL),
                    };
                    // SAFETY: the pointers are to pixels, or to a pixel of zeros; the first phase
                    // has packed the weights; the rest is guaranteed by the caller.
                    unsafe { tile.run(isa) }
                }
            }
            finish(Block { rows: band, cols: cols.clone() });
        }
    }

    /// Sets the pixels that each tap of the filter multiplies in `count` rows of the output.
    fn point(
        &self,
        images: *const u8,
        zeros: *const u8,
        row: usize,
        count: usize,
        pointers: &mut [*const u8],
    ) {
        let c = &self.conv;
        let [out_height, out_width] = c.out_size;
        for i in 0..count {
            let (pixel, x) = ((row + i) / out_width, (row + i) % out_width);
            let (image, y) = (pixel / out_height, pixel % out_height);
            for (tap, pointers) in pointers.chunks_exact_mut(count).enumerate() {
                let at = [(y, tap / c.kernel[1]), (x, tap % c.kernel[1])];
                // Below the low edge the index wraps around, beyond the high edge.
                let [y, x] = [0, 1].map(|d| {
                    let (out, tap) = at[d];
                    (out * c.stride[d] + tap * c.dilation[d]).wrapping_sub(c.pad_low[d])
                });
                let inside = y < c.in_size[0] && x < c.in_size[1];
                pointers[i] = match inside {
                    true => {
                        let pixel = (image * c.in_size[0] + y) * c.in_size[1] + x;
                        images.wrapping_add(pixel * c.in_channels)
                    }
                    false => zeros,
                };
            }
        }
    }
}

per_isa! {
    /// Packs the columns of one panel of weights, from `first` on, and computes their offsets.
    unsafe fn pack(weights: &[u8], cols: usize, first: usize, panel: &mut [i8], offsets: &mut [i32]) = pack_panel
}

/// # Safety
/// None of its own: it is unsafe like the functions that are compiled from it.
#[inline(always)]
unsafe fn pack_panel<const FMA: bool>(
    weights: &[u8],
    cols: usize,
    first: usize,
    panel: &mut [i8],
    offsets: &mut [i32],
) {
    let own = first..cols.min(first + PANEL);
    offsets.fill(0);
    for (packed, rows) in panel.chunks_exact_mut(PANEL * GROUP).zip(weights.chunks_exact(cols * GROUP)) {
        packed.fill(0);
        let packed = packed.chunks_exact_mut(GROUP);
        let rows: [&[u8]; GROUP] = std::array::from_fn(|i| &rows[i * cols..][own.clone()]);
        let columns = rows[0].iter().zip(rows[1]).zip(rows[2].iter().zip(rows[3]));
        for ((packed, offset), ((a, b), (c, d))) in packed.zip(offsets.iter_mut()).zip(columns) {
            // Flipping the highest bit subtracts the zero point.
            let group = [a, b, c, d].map(|w| (w ^ ZERO) as i8);
            packed.copy_from_slice(&group);
            *offset += group.iter().map(|&w| i32::from(w)).sum::<i32>();
        }
    }
    offsets.iter_mut().for_each(|offset| *offset *= i32::from(ZERO));
}
