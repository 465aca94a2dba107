//! Batched matrix multiplication, with either operand transposed or shared by the batch.
//!
//! A chunk owns a block of rows by some panels of columns; `blocked` computes it. A left operand
//! whose steps are not contiguous is packed first, once for all chunks. A long sum with few outputs
//! would be a single chunk, so it is split along `k` into slices, whose partial results a last
//! phase adds in order.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::gemm::amx::Amx;
#[cfg(target_arch = "x86_64")]
use crate::gemm::blocked;
use crate::gemm::contract::{Contract, Float, Operands, PairContract};
use crate::partition;
#[cfg(target_arch = "x86_64")]
use crate::simd::Pairs512;
use crate::{Bf16Isa, Block, Isa};
use tensorpack_tensor::{DType, Result};

/// `out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`. The output matrix has `batch * m`
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatMul {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of each output matrix.
    pub m: usize,
    /// Columns of each output matrix.
    pub n: usize,
    /// Length of the contracted dimension.
    pub k: usize,
    /// The left operand is stored `[batch, k, m]` rather than `[batch, m, k]`.
    pub lhs_transposed: bool,
    /// The right operand is stored `[batch, n, k]` rather than `[batch, k, n]`.
    pub rhs_transposed: bool,
    /// All products use one left operand, which has no batch dimension.
    pub lhs_shared: bool,
    /// All products use one right operand, which has no batch dimension.
    pub rhs_shared: bool,
    /// The right operand is stored packed in panels: `[batch, ceil(n / PANEL), k, PANEL]`, with
    /// unspecified values past the last column. Excludes `rhs_transposed`. See [`MatMul::PANEL`].
    pub rhs_panels: bool,
    /// Number of threads that share the product. For more threads the blocks of rows and columns
    /// are smaller; the order of the sums stays the same.
    pub threads: usize,
}

/// Maximum depth of a block along `k`: a panel of this depth streams from the L2 cache, and the
/// sums are rarely reloaded.
pub(crate) const DEPTH: usize = 720;
/// Maximum number of rows of a block: with all their steps they fill most of the L2 cache. Packing
/// a panel costs as much as about five rows.
const BLOCK_ROWS: usize = 360;
/// The columns of a chunk are a multiple of this, the width of the widest panel.
pub(crate) const BLOCK_COLS: usize = 64;
/// Maximum number of columns of a chunk.
const CHUNK_COLS: usize = 256;
/// Approximate maximum number of steps of the left operand that a chunk packs.
const PACK_STEPS: usize = 64;
/// Minimum number of operations per chunk: a few microseconds of work.
const SMALL_CHUNK: usize = 1_000_000;
/// Sums of at least this many terms may be sliced.
const LONG_SUM: usize = 1152;
/// With fewer chunks than this, columns, rows and sums are split further.
const ENOUGH_CHUNKS: usize = 8;
/// Number of chunks per thread, if there are more threads than that is enough for: some threads are
/// slower than others.
const CHUNKS_PER_THREAD: usize = 2;
/// Minimum number of rows of a block that exists only because there are many threads: fewer rows
/// cost more than they gain, since each block packs its panels.
const MIN_ROWS: usize = 32;
/// Storing an output costs as much as this many operations.
const STORE_OPS: usize = 32;

/// The blocking of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    row_blocks: usize,
    col_blocks: usize,
    /// Number of slices along `k`.
    pub(crate) slices: usize,
    /// Whether the left operand is packed; never together with several slices.
    pub(crate) packs_lhs: bool,
}

/// The work of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    PackLhs,
    Multiply,
    AddSlices,
}

/// One chunk's part of the product.
pub(crate) struct Part {
    pub(crate) batch: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
    pub(crate) slice: usize,
}

/// The part of the left operand that one chunk packs.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Packing {
    pub(crate) batch: usize,
    pub(crate) rows: Range<usize>,
    /// The block along `k`, and the steps of it that the chunk packs.
    pub(crate) depth: Range<usize>,
    pub(crate) steps: Range<usize>,
}

impl MatMul {
    /// Columns of a panel.
    pub const PANEL: usize = 32;

    /// Returns the same product with the batch folded into the rows, if all batches share the right
    /// operand.
    fn folded(&self) -> MatMul {
        if self.rhs_shared && !self.lhs_shared && !self.lhs_transposed {
            MatMul { batch: 1, m: self.batch * self.m, ..*self }
        } else {
            *self
        }
    }

    /// Returns the blocking of a folded product.
    pub(crate) fn blocking(&self) -> Blocking {
        let ops = |rows: usize, cols: usize, k: usize| rows.saturating_mul(cols).saturating_mul(2 * k);
        let mut row_blocks = self.m.div_ceil(BLOCK_ROWS).max(1);
        let mut cols = BLOCK_COLS;
        while cols < CHUNK_COLS && self.batch * row_blocks * self.n.div_ceil(2 * cols) >= ENOUGH_CHUNKS {
            cols *= 2;
        }
        // Enough columns to outweigh the overhead of a chunk; all of them if there is nothing to
        // multiply.
        let wanted = match ops(self.m.div_ceil(row_blocks), 1, self.k) {
            0 => self.n,
            column => self.n.min(SMALL_CHUNK.div_ceil(column)),
        };
        cols += wanted.saturating_sub(cols).next_multiple_of(BLOCK_COLS);
        let col_blocks = self.n.div_ceil(cols);
        let mut slices = 1;
        let chunks = |row_blocks: usize, slices: usize| self.batch * row_blocks * col_blocks * slices;
        let big = |row_blocks: usize, slices: usize| {
            ops(self.m.div_ceil(row_blocks), cols, self.k.div_ceil(slices)) >= 2 * SMALL_CHUNK
        };
        while chunks(row_blocks, slices) < ENOUGH_CHUNKS && big(row_blocks, slices) {
            // Slices duplicate no work but add a phase: they pay off only if the sum is long.
            if self.k / slices >= LONG_SUM || (slices > 1 && self.k / slices >= LONG_SUM / 2) {
                slices *= 2;
            } else if self.m.div_ceil(row_blocks) >= 64 {
                row_blocks *= 2;
            } else {
                break;
            }
        }
        // Packing costs as much as a few columns.
        let packs_lhs =
            self.lhs_transposed && slices == 1 && self.m > MatMul::PANEL && self.n > 2 * MatMul::PANEL;
        self.for_threads(Blocking { row_blocks, col_blocks, slices, packs_lhs })
    }

    /// Divides rows and columns further if there are many threads. The slices stay: results must
    /// not depend on the number of threads.
    fn for_threads(&self, mut blocking: Blocking) -> Blocking {
        let enough = CHUNKS_PER_THREAD * self.threads;
        if enough <= ENOUGH_CHUNKS {
            return blocking;
        }
        let panels = self.n.div_ceil(BLOCK_COLS);
        loop {
            let Blocking { row_blocks, col_blocks, slices, .. } = blocking;
            let chunks = self.batch * row_blocks * col_blocks * slices;
            let (rows, cols) = (self.m.div_ceil(row_blocks), panels.div_ceil(col_blocks.max(1)));
            let each = rows
                .saturating_mul(cols * BLOCK_COLS)
                .saturating_mul(2 * self.k.div_ceil(slices) + STORE_OPS);
            if chunks == 0 || chunks >= enough || each < 2 * SMALL_CHUNK {
                return blocking;
            }
            if cols > 1 {
                blocking.col_blocks = panels.min(2 * col_blocks);
            } else if rows >= 2 * MIN_ROWS {
                blocking.row_blocks *= 2;
            } else {
                return blocking;
            }
        }
    }

    /// Returns the work of a phase of a folded product.
    pub(crate) fn stage(blocking: &Blocking, phase: usize) -> Stage {
        match phase {
            0 if blocking.packs_lhs => Stage::PackLhs,
            1 if blocking.slices > 1 => Stage::AddSlices,
            _ => Stage::Multiply,
        }
    }

    pub(crate) fn part(&self, blocking: &Blocking, chunk: usize) -> Part {
        let (chunk, col_block) = (chunk / blocking.col_blocks, chunk % blocking.col_blocks);
        let (chunk, row_block) = (chunk / blocking.row_blocks, chunk % blocking.row_blocks);
        let panels = partition::part(self.n.div_ceil(BLOCK_COLS), blocking.col_blocks, col_block);
        Part {
            batch: chunk % self.batch,
            rows: partition::part(self.m, blocking.row_blocks, row_block),
            cols: panels.start * BLOCK_COLS..(panels.end * BLOCK_COLS).min(self.n),
            slice: chunk / self.batch,
        }
    }

    /// Returns the number of blocks along `k`, and into how many pieces each is divided for
    /// packing.
    fn packings(&self) -> (usize, usize) {
        let parts = self.k.div_ceil(DEPTH).max(1);
        (parts, self.k.div_ceil(parts).div_ceil(PACK_STEPS).max(1))
    }

    /// Returns the number of left operands.
    fn lhs_count(&self) -> usize {
        if self.lhs_shared { 1 } else { self.batch }
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn packing(&self, blocking: &Blocking, chunk: usize) -> Packing {
        let (parts, pieces) = self.packings();
        let (chunk, piece) = (chunk / pieces, chunk % pieces);
        let (chunk, row_block) = (chunk / blocking.row_blocks, chunk % blocking.row_blocks);
        let depth = partition::part(self.k, parts, chunk % parts);
        Packing {
            batch: chunk / parts,
            rows: partition::part(self.m, blocking.row_blocks, row_block),
            steps: partition::part(depth.len(), pieces, piece),
            depth,
        }
    }

    /// Returns the number of chunks of the last phase of a sliced product: blocks of whole rows.
    fn sum_blocks(&self) -> usize {
        (self.batch * self.m * self.n).div_ceil(1 << 14).clamp(1, (self.batch * self.m).max(1))
    }

    /// Returns the strides of the left operand: batch, row, step.
    pub(crate) fn lhs_strides(&self) -> (usize, usize, usize) {
        let batch = if self.lhs_shared { 0 } else { self.m * self.k };
        if self.lhs_transposed { (batch, 1, self.m) } else { (batch, self.k, 1) }
    }

    /// Returns the strides of the right operand: batch, step and column, the last one within a
    /// panel if it is stored in panels.
    pub(crate) fn rhs_strides(&self) -> (usize, usize, usize) {
        let batch = if self.rhs_shared { 0 } else { self.rhs_matrix() };
        match (self.rhs_panels, self.rhs_transposed) {
            (true, _) => (batch, MatMul::PANEL, 1),
            (_, true) => (batch, 1, self.k),
            (_, false) => (batch, self.n, 1),
        }
    }

    /// Returns the number of elements of one right operand.
    fn rhs_matrix(&self) -> usize {
        let cols = if self.rhs_panels { self.n.next_multiple_of(MatMul::PANEL) } else { self.n };
        cols * self.k
    }

    /// Returns the offset of a column in a right operand.
    pub(crate) fn rhs_column(&self, col: usize) -> usize {
        match (self.rhs_panels, self.rhs_transposed) {
            (true, _) => col / MatMul::PANEL * self.k * MatMul::PANEL + col % MatMul::PANEL,
            (_, true) => col * self.k,
            (_, false) => col,
        }
    }

    /// Reference loops: rows of the output matrix, one after another.
    ///
    /// # Safety
    /// The operands are valid, and no other thread accesses this part of the output.
    unsafe fn plain<T: Float>(&self, mem: Operands<T>, rows: Range<usize>, cols: Range<usize>) {
        let (lhs_batch, lhs_row, lhs_step) = self.lhs_strides();
        let (rhs_batch, rhs_step, _) = self.rhs_strides();
        for row in rows {
            let (batch, m) = (row / self.m, row % self.m);
            // SAFETY: `row`, `cols` and `k` are inside the sizes that the operands have.
            unsafe {
                let out = std::slice::from_raw_parts_mut(mem.out.add(row * self.n + cols.start), cols.len());
                out.fill(T::default());
                for k in 0..self.k {
                    let a = *mem.lhs.add(batch * lhs_batch + m * lhs_row + k * lhs_step);
                    let b = mem.rhs.add(batch * rhs_batch + k * rhs_step);
                    if self.rhs_transposed || self.rhs_panels {
                        for (n, out) in out.iter_mut().enumerate() {
                            *out += a * *b.add(self.rhs_column(cols.start + n));
                        }
                    } else {
                        let b = std::slice::from_raw_parts(b.add(cols.start), cols.len());
                        for (out, &b) in out.iter_mut().zip(b) {
                            *out += a * b;
                        }
                    }
                }
            }
        }
    }

    /// Runs one chunk of a folded product with the reference loops.
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`].
    unsafe fn run_plain<T: Float>(
        &self,
        phase: usize,
        chunk: usize,
        mem: Operands<T>,
        finish: &mut dyn FnMut(Block),
    ) {
        let blocking = self.blocking();
        // The reference loops neither pack nor slice: the last phase does all the work.
        let block = match MatMul::stage(&blocking, phase) {
            Stage::PackLhs => return,
            Stage::Multiply if blocking.slices > 1 => return,
            Stage::Multiply => self.out_block(&self.part(&blocking, chunk)),
            Stage::AddSlices => self.sum_block(chunk),
        };
        // SAFETY: blocks of different chunks are disjoint, the rest is guaranteed by the caller.
        unsafe { self.plain(mem, block.rows.clone(), block.cols.clone()) }
        finish(block);
    }

    /// Returns the block of the output that a chunk computes.
    pub(crate) fn out_block(&self, part: &Part) -> Block {
        let first = part.batch * self.m;
        Block { rows: first + part.rows.start..first + part.rows.end, cols: part.cols.clone() }
    }

    /// Returns the block of the output that a chunk of the last phase sums.
    pub(crate) fn sum_block(&self, chunk: usize) -> Block {
        Block { rows: partition::part(self.batch * self.m, self.sum_blocks(), chunk), cols: 0..self.n }
    }
}

impl Contract for MatMul {
    fn check(&self) -> Result<()> {
        self.check_sizes()
    }

    fn out_matrix(&self) -> (usize, usize) {
        (self.batch * self.m, self.n)
    }

    fn lhs_len(&self) -> usize {
        if self.lhs_shared { self.m * self.k } else { self.batch * self.m * self.k }
    }

    fn rhs_len(&self) -> usize {
        self.rhs_matrix() * if self.rhs_shared { 1 } else { self.batch }
    }

    fn phases(&self) -> usize {
        let blocking = self.folded().blocking();
        1 + usize::from(blocking.slices > 1 || blocking.packs_lhs)
    }

    fn chunks(&self, phase: usize) -> usize {
        let folded = self.folded();
        let blocking = folded.blocking();
        if folded.m == 0 || folded.n == 0 {
            return 0;
        }
        match MatMul::stage(&blocking, phase) {
            Stage::PackLhs => {
                let (parts, pieces) = folded.packings();
                folded.lhs_count() * parts * blocking.row_blocks * pieces
            }
            Stage::Multiply => folded.batch * blocking.row_blocks * blocking.col_blocks * blocking.slices,
            Stage::AddSlices => folded.sum_blocks(),
        }
    }

    fn shared_bytes(&self, dtype: DType) -> usize {
        let folded = self.folded();
        let blocking = folded.blocking();
        let packed = if blocking.packs_lhs { self.lhs_len() } else { 0 };
        let partial = if blocking.slices > 1 { blocking.slices * self.batch * self.m * self.n } else { 0 };
        (packed + partial) * dtype.size()
    }

    fn scratch_bytes(&self, _: DType) -> usize {
        // The widest panel of f64 has as many bytes as that of f32.
        self.k.min(DEPTH) * BLOCK_COLS * size_of::<f32>()
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
        debug_assert!(scratch.len() >= self.scratch_bytes(DType::F32));
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => {
                    blocked::run::<std::arch::x86_64::__m512>(&folded, phase, chunk, mem, scratch, finish)
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => {
                    blocked::run::<std::arch::x86_64::__m256>(&folded, phase, chunk, mem, scratch, finish)
                }
                _ => folded.run_plain(phase, chunk, mem, finish),
            }
        }
    }

    unsafe fn run_f64(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f64>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let folded = self.folded();
        debug_assert!(scratch.len() >= self.scratch_bytes(DType::F64));
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => {
                    blocked::run::<std::arch::x86_64::__m512d>(&folded, phase, chunk, mem, scratch, finish)
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => {
                    blocked::run::<std::arch::x86_64::__m256d>(&folded, phase, chunk, mem, scratch, finish)
                }
                _ => folded.run_plain(phase, chunk, mem, finish),
            }
        }
    }
}

impl PairContract for MatMul {
    unsafe fn run_pairs(
        &self,
        isa: Bf16Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let folded = self.folded();
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match isa {
                Bf16Isa::Avx512Bf16 => blocked::run::<Pairs512>(&folded, phase, chunk, mem, scratch, finish),
                Bf16Isa::Amx => {
                    Amx::begin_chunk();
                    blocked::run::<Amx>(&folded, phase, chunk, mem, scratch, finish)
                }
            }
        }
    }
}
