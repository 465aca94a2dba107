//! Matrix products, batched, with either operand transposed or shared by the batch.
//!
//! A chunk owns a block of rows by some panels of columns. It packs a panel of the right operand, up to [`DEPTH`]
//! rows of it so that it stays in the fastest cache, and uses it for all rows of the block. The left operand is read
//! in place, unless its layout wastes cache: then the block is copied, and serves all panels. A long sum with few outputs would be a single chunk, so it is cut into slices, whose partial
//! results a second phase adds up in order.

use std::ops::Range;

use crate::contract::{Contract, Float, Operands};
use crate::{Block, Isa, split};

/// `out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`. As a matrix the output has `batch * m` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatMul {
    /// Independent products.
    pub batch: usize,
    /// Rows of each output.
    pub m: usize,
    /// Columns of each output.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left operand is stored `[batch, k, m]` rather than `[batch, m, k]`.
    pub lhs_transposed: bool,
    /// The right operand is stored `[batch, n, k]` rather than `[batch, k, n]`.
    pub rhs_transposed: bool,
    /// All products use one left operand, which has no batch dimension.
    pub lhs_shared: bool,
    /// All products use one right operand, which has no batch dimension.
    pub rhs_shared: bool,
}

/// Rows of a packed panel: with the widest panel, three quarters of a 48 KiB first-level cache.
const DEPTH: usize = 288;
/// Rows of a block at most: packing a panel costs as much as some five rows.
const BLOCK_ROWS: usize = 168;
/// Columns of the chunks are a multiple of this, the widest panel.
const BLOCK_COLS: usize = 32;
/// Chunks are cut no smaller than this many operations, which take some microseconds.
const SMALL_CHUNK: usize = 1_000_000;
/// With fewer chunks than this, rows and sums are cut further.
const ENOUGH_CHUNKS: usize = 8;

/// How a product is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    row_blocks: usize,
    /// Columns of a chunk; the last may have fewer.
    cols: usize,
    col_blocks: usize,
    /// Parts of the sum.
    slices: usize,
}

/// One chunk's part of the product.
struct Part {
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    slice: usize,
}

impl MatMul {
    /// The same product with the batch turned into rows where one right operand serves them all.
    fn folded(&self) -> MatMul {
        if self.rhs_shared && !self.lhs_shared && !self.lhs_transposed {
            MatMul { batch: 1, m: self.batch * self.m, ..*self }
        } else {
            *self
        }
    }

    /// The cut of a folded product.
    fn cut(&self) -> Cut {
        let ops = |rows: usize, cols: usize, k: usize| rows.saturating_mul(cols).saturating_mul(2 * k);
        let mut row_blocks = self.m.div_ceil(BLOCK_ROWS).max(1);
        let mut cols = BLOCK_COLS;
        while cols < 4 * BLOCK_COLS && self.batch * row_blocks * self.n.div_ceil(2 * cols) >= ENOUGH_CHUNKS {
            cols *= 2;
        }
        while cols < self.n && ops(self.m.div_ceil(row_blocks), cols, self.k) < SMALL_CHUNK {
            cols += BLOCK_COLS;
        }
        let col_blocks = self.n.div_ceil(cols);
        let mut slices = 1;
        let chunks = |row_blocks: usize, slices: usize| self.batch * row_blocks * col_blocks * slices;
        let big = |row_blocks: usize, slices: usize| {
            ops(self.m.div_ceil(row_blocks), cols, self.k.div_ceil(slices)) >= 2 * SMALL_CHUNK
        };
        while chunks(row_blocks, slices) < ENOUGH_CHUNKS && big(row_blocks, slices) {
            // Slices share no work, but add a phase: worth it only when the sum is long.
            if self.k / slices >= 4 * DEPTH || (slices > 1 && self.k / slices >= 2 * DEPTH) {
                slices *= 2;
            } else if self.m.div_ceil(row_blocks) >= 64 {
                row_blocks *= 2;
            } else {
                break;
            }
        }
        Cut { row_blocks, cols, col_blocks, slices }
    }

    fn part(&self, cut: &Cut, chunk: usize) -> Part {
        let (chunk, col_block) = (chunk / cut.col_blocks, chunk % cut.col_blocks);
        let (chunk, row_block) = (chunk / cut.row_blocks, chunk % cut.row_blocks);
        Part {
            batch: chunk % self.batch,
            rows: split::part(self.m, cut.row_blocks, row_block),
            cols: col_block * cut.cols..((col_block + 1) * cut.cols).min(self.n),
            slice: chunk / self.batch,
        }
    }

    /// How the second phase of a sliced product is cut: blocks of whole rows.
    fn sum_blocks(&self) -> usize {
        (self.batch * self.m * self.n).div_ceil(1 << 14).clamp(1, (self.batch * self.m).max(1))
    }

    /// Whether chunks copy their block of the left operand: its rows lie in as many memory pages as the sum has
    /// steps, or fall on the same few places of the cache. Only if several panels share the cost.
    fn copies_lhs(&self, cut: &Cut) -> bool {
        cut.cols.min(self.n) > BLOCK_COLS && (self.lhs_transposed || self.k.is_multiple_of(512))
    }

    /// The distance between runs of `len` in a copy of the left operand: an odd number of cache lines, so that they
    /// spread evenly over the cache.
    fn copy_stride(len: usize) -> usize {
        (len.div_ceil(16) | 1) * 16
    }

    /// Distances in the left operand: batch, row, step.
    fn lhs_strides(&self) -> (usize, usize, usize) {
        let batch = if self.lhs_shared { 0 } else { self.m * self.k };
        if self.lhs_transposed { (batch, 1, self.m) } else { (batch, self.k, 1) }
    }

    /// Distances in the right operand: batch, step, column.
    fn rhs_strides(&self) -> (usize, usize, usize) {
        let batch = if self.rhs_shared { 0 } else { self.n * self.k };
        if self.rhs_transposed { (batch, 1, self.k) } else { (batch, self.n, 1) }
    }

    /// The reference: rows of the output matrix, one after another.
    ///
    /// # Safety
    /// The operands are valid, and nobody else uses this part of the output.
    unsafe fn plain<T: Float>(&self, mem: Operands<T>, rows: Range<usize>, cols: Range<usize>) {
        let (lhs_batch, lhs_row, lhs_step) = self.lhs_strides();
        let (rhs_batch, rhs_step, rhs_col) = self.rhs_strides();
        for row in rows {
            let (batch, m) = (row / self.m, row % self.m);
            // SAFETY: `row`, `cols` and `k` are inside the sizes that the operands have.
            unsafe {
                let out = std::slice::from_raw_parts_mut(mem.out.add(row * self.n + cols.start), cols.len());
                out.fill(T::default());
                for k in 0..self.k {
                    let a = *mem.lhs.add(batch * lhs_batch + m * lhs_row + k * lhs_step);
                    let b = mem.rhs.add(batch * rhs_batch + k * rhs_step + cols.start * rhs_col);
                    if self.rhs_transposed {
                        for (n, out) in out.iter_mut().enumerate() {
                            *out += a * *b.add(n * rhs_col);
                        }
                    } else {
                        let b = std::slice::from_raw_parts(b, cols.len());
                        for (out, &b) in out.iter_mut().zip(b) {
                            *out += a * b;
                        }
                    }
                }
            }
        }
    }

    /// Runs a chunk of a folded product with the plain loops.
    ///
    /// # Safety
    /// As for [`Contract::run_f32`].
    unsafe fn run_plain<T: Float>(
        &self,
        phase: usize,
        chunk: usize,
        mem: Operands<T>,
        finish: &mut dyn FnMut(Block),
    ) {
        let cut = self.cut();
        let block = match (cut.slices, phase) {
            (1, _) => self.out_block(&self.part(&cut, chunk)),
            // The plain loops know no slices: the last phase does it all.
            (_, 0) => return,
            _ => self.sum_block(chunk),
        };
        // SAFETY: blocks of different chunks are disjoint, the rest is passed on from the caller.
        unsafe { self.plain(mem, block.rows.clone(), block.cols.clone()) }
        finish(block);
    }

    /// The rectangle of the output that a chunk of the first phase computes.
    fn out_block(&self, part: &Part) -> Block {
        let first = part.batch * self.m;
        Block { rows: first + part.rows.start..first + part.rows.end, cols: part.cols.clone() }
    }

    /// The rectangle of the output that a chunk of the second phase sums.
    fn sum_block(&self, chunk: usize) -> Block {
        Block { rows: split::part(self.batch * self.m, self.sum_blocks(), chunk), cols: 0..self.n }
    }
}

impl Contract for MatMul {
    fn out_matrix(&self) -> (usize, usize) {
        (self.batch * self.m, self.n)
    }

    fn lhs_len(&self) -> usize {
        if self.lhs_shared { self.m * self.k } else { self.batch * self.m * self.k }
    }

    fn rhs_len(&self) -> usize {
        if self.rhs_shared { self.n * self.k } else { self.batch * self.n * self.k }
    }

    fn phases(&self) -> usize {
        if self.folded().cut().slices > 1 { 2 } else { 1 }
    }

    fn chunks(&self, phase: usize) -> usize {
        let folded = self.folded();
        let cut = folded.cut();
        if phase > 0 {
            folded.sum_blocks()
        } else if folded.m == 0 || folded.n == 0 {
            0
        } else {
            folded.batch * cut.row_blocks * cut.col_blocks * cut.slices
        }
    }

    fn shared_bytes(&self) -> usize {
        let slices = self.folded().cut().slices;
        if slices > 1 { slices * self.batch * self.m * self.n * size_of::<f32>() } else { 0 }
    }

    fn scratch_bytes(&self) -> usize {
        let folded = self.folded();
        let cut = folded.cut();
        let (rows, depth) = (folded.m.div_ceil(cut.row_blocks), self.k.min(DEPTH));
        let copy = match (folded.copies_lhs(&cut), self.lhs_transposed) {
            (false, _) => 0,
            (true, false) => rows * MatMul::copy_stride(depth),
            (true, true) => depth * MatMul::copy_stride(rows),
        };
        (depth * BLOCK_COLS + copy) * size_of::<f32>()
    }

    fn flops(&self) -> f64 {
        2.0 * (self.batch * self.m) as f64 * self.n as f64 * self.k as f64
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
        let folded = self.folded();
        debug_assert!(scratch.len() >= self.scratch_bytes());
        // SAFETY: passed on from the caller, who has checked that the machine has `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => {
                    fast::run::<std::arch::x86_64::__m512>(&folded, phase, chunk, mem, scratch, finish)
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => {
                    fast::run::<std::arch::x86_64::__m256>(&folded, phase, chunk, mem, scratch, finish)
                }
                _ => folded.run_plain(phase, chunk, mem, finish),
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
        unsafe { self.folded().run_plain(phase, chunk, mem, finish) }
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use super::*;
    use crate::panel;
    use crate::simd::Simd;
    use crate::tile::{Tile, sum_partials};

    /// Runs a chunk of a folded product.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, and as for [`Contract::run_f32`].
    pub(super) unsafe fn run<V: Simd>(
        product: &MatMul,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let cut = product.cut();
        let out_len = product.batch * product.m * product.n;
        let block = if phase == 0 {
            let part = product.part(&cut, chunk);
            let block = product.out_block(&part);
            let out = match cut.slices {
                1 => mem.out,
                _ => mem.shared.cast::<f32>().wrapping_add(part.slice * out_len),
            };
            // SAFETY: each chunk has its own block of its own slice; the rest is passed on from the caller.
            unsafe { multiply::<V>(product, &part, &cut, Operands { out, ..mem }, scratch) }
            if cut.slices > 1 {
                return;
            }
            block
        } else {
            let block = product.sum_block(chunk);
            let elements = block.rows.start * product.n..block.rows.end * product.n;
            // SAFETY: all slices are complete, and this chunk owns these rows of the output.
            unsafe { sum_partials(mem.shared.cast(), out_len, cut.slices, mem.out, elements) }
            block
        };
        finish(block);
    }

    /// # Safety
    /// As for [`run`]; `mem.out` is the matrix that receives the part.
    unsafe fn multiply<V: Simd>(
        product: &MatMul,
        part: &Part,
        cut: &Cut,
        mem: Operands<f32>,
        scratch: &mut [u8],
    ) {
        let copies_lhs = product.copies_lhs(cut);
        let (lhs_batch, lhs_row, lhs_step) = product.lhs_strides();
        let (rhs_batch, rhs_step, rhs_col) = product.rhs_strides();
        let packed = scratch.as_mut_ptr().cast::<f32>();
        let copy = packed.wrapping_add(product.k.min(DEPTH) * BLOCK_COLS);
        let slice = split::part(product.k, cut.slices, part.slice);
        for steps in split::parts(slice.len(), DEPTH) {
            let first = slice.start + steps.start;
            let lhs = part.batch * lhs_batch + part.rows.start * lhs_row + first * lhs_step;
            let mut a = mem.lhs.wrapping_add(lhs);
            let mut a_stride = if product.lhs_transposed { lhs_step } else { lhs_row };
            if copies_lhs {
                let (runs, len) = match product.lhs_transposed {
                    true => (steps.len(), part.rows.len()),
                    false => (part.rows.len(), steps.len()),
                };
                for run in 0..runs {
                    let to = copy.wrapping_add(run * MatMul::copy_stride(len));
                    // SAFETY: a run of the block, and its place in the copy that `scratch_bytes` allows for.
                    unsafe { std::ptr::copy_nonoverlapping(a.wrapping_add(run * a_stride), to, len) }
                }
                (a, a_stride) = (copy, MatMul::copy_stride(len));
            }
            for col in part.cols.clone().step_by(2 * V::LANES) {
                let cols = (part.cols.end - col).min(2 * V::LANES);
                let width = panel::width(cols, V::LANES);
                // Packing is a waste if the panel serves one tile only, or is packed already.
                let in_place = !product.rhs_transposed
                    && cols == width
                    && (part.rows.len() <= V::MAX_ROWS || product.n == width);
                let rhs = mem.rhs.wrapping_add(part.batch * rhs_batch + first * rhs_step + col * rhs_col);
                // SAFETY: the panel is inside the operand, and `scratch` holds `DEPTH` rows of the widest.
                unsafe {
                    match (in_place, product.rhs_transposed) {
                        (true, _) => (),
                        (_, false) => panel::pack_rows(rhs, rhs_step, steps.len(), cols, packed, width),
                        (_, true) => panel::pack_columns(rhs, rhs_col, steps.len(), cols, packed, width),
                    }
                }
                let tile = Tile {
                    images: 1,
                    segments: 1,
                    steps: steps.len(),
                    a,
                    a_stride,
                    a_segment: 0,
                    a_image: 0,
                    b: if in_place { rhs } else { packed },
                    b_step: if in_place { rhs_step } else { width },
                    b_segment: 0,
                    b_image: 0,
                    c: mem.out.wrapping_add((part.batch * product.m + part.rows.start) * product.n + col),
                    c_row: product.n,
                    cols,
                    add: steps.start > 0,
                };
                // SAFETY: rows, columns and steps are inside the operands and the output.
                unsafe { tile.run::<V>(part.rows.len(), !product.lhs_transposed) }
            }
        }
    }
}
