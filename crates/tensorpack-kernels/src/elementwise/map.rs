//! Fused elementwise kernels: an expression over every element of an iteration space.

use crate::elementwise::iteration_space::Space;
use crate::elementwise::steps::{self, Value};
use crate::elementwise::tile_program::{Program, Run, Tile, TileSize};
use crate::expr::Expr;
use crate::scalar::element::class_size;
use crate::{Block, Isa};
use std::ops::Range;
use tensorpack_tensor::DType;

/// Approximate maximum number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// Expressions that cost more than this get smaller chunks, so that few but expensive elements are
/// shared among threads, too.
const SIMPLE: usize = 8;

/// Maximum number of bytes of a value over a tile.
const TILE_BYTES: usize = 32 * 1024;

/// An operand of a kernel: its element type and strides.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// The element type.
    pub dtype: DType,
    /// The stride in elements along each dimension of the iteration space; 0 broadcasts the
    /// element, and negative strides go backwards.
    pub strides: Vec<isize>,
}

/// An expression over every element of an iteration space. Outputs are dense and in row-major
/// order. An output may share the memory of a dense operand whose elements have the same size.
#[derive(Clone, Debug)]
pub struct Map {
    len: usize,
    /// Length of the last dimension: the row length of [`Map::run_block`].
    last: usize,
    chunk: usize,
    outputs: Vec<DType>,
    flat: Program,
    /// The same program with the last dimension not merged, for blocks narrower than a row.
    block: Option<Program>,
}

/// Sets all sizes and strides of an empty iteration space to 0, because its other sizes may
/// overflow when multiplied. Returns any other space unchanged.
pub(crate) fn normalize_empty(dims: &[usize], operands: Vec<Operand>) -> (Vec<usize>, Vec<Operand>) {
    if !dims.contains(&0) {
        return (dims.to_vec(), operands);
    }
    let without_strides = |o: Operand| Operand { strides: vec![0; o.strides.len()], ..o };
    (vec![0; dims.len()], operands.into_iter().map(without_strides).collect())
}

impl Map {
    /// Prepares a kernel that evaluates `expr` over `dims` and stores its results as the types in
    /// `outputs`.
    pub fn new(dims: &[usize], operands: Vec<Operand>, expr: Expr, outputs: Vec<DType>) -> Map {
        assert_eq!(
            expr.outputs.len(),
            outputs.len(),
            "`outputs` needs one type per result of the expression"
        );
        let (dims, operands) = normalize_empty(dims, operands);
        let (dims, len) = (&dims[..], dims.iter().product::<usize>());
        let last = dims.last().copied().unwrap_or(1);
        let space = |groups| Space::new(dims, groups, &operands, &expr).merge();
        let merged = space(vec![0; dims.len()]);
        let unit = merged.dims.last().copied().unwrap_or(1);
        let flat = Program::new(&merged, &operands, &expr, &outputs, unit, TileSize::Fitting(TILE_BYTES));
        let block = (last > 1 && len > last).then(|| {
            let groups = (1..=dims.len()).map(|d| u8::from(d == dims.len())).collect();
            Program::new(&space(groups), &operands, &expr, &outputs, 1, TileSize::Fitting(TILE_BYTES))
        });
        // Whole tiles per chunk, with a last chunk not much smaller than the others.
        let pieces = len.saturating_mul(expr.cost().max(SIMPLE)).div_ceil(SIMPLE * CHUNK).max(1);
        let chunk = len.div_ceil(pieces).next_multiple_of(flat.capacity().max(64)).max(1);
        Map { len, last, chunk, outputs, flat, block }
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// Returns the output positions that a chunk writes.
    pub fn chunk_range(&self, chunk: usize) -> Range<usize> {
        (chunk * self.chunk).min(self.len)..((chunk + 1) * self.chunk).min(self.len)
    }

    /// Returns the bytes of scratch memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        self.flat.scratch_bytes().max(self.block.as_ref().map_or(0, Program::scratch_bytes))
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// Every operand must be readable at every offset that its strides reach, and every output
    /// writable in full. An output must not overlap anything but one operand, as described at
    /// [`Map`]. Only other chunks of the same kernel may write them meanwhile. `scratch` must be
    /// aligned to 64 bytes, and the CPU must support `isa`.
    pub unsafe fn run(
        &self,
        isa: Isa,
        chunk: usize,
        operands: &[*const u8],
        outputs: &[*mut u8],
        scratch: &mut [u8],
    ) {
        // SAFETY: guaranteed by the caller; a chunk is within the outputs.
        unsafe { self.run_flat(isa, self.chunk_range(chunk), operands, outputs, scratch) };
    }

    /// Computes the part of the outputs inside `block`, with the outputs seen as a matrix whose
    /// rows are the last dimension (a space of rank 0 or 1 is a single row).
    ///
    /// # Safety
    /// Same as [`Map::run`], with nothing else writing inside the block.
    pub unsafe fn run_block(
        &self,
        isa: Isa,
        block: &Block,
        operands: &[*const u8],
        outputs: &[*mut u8],
        scratch: &mut [u8],
    ) {
        let (rows, cols) = (block.rows.clone(), block.cols.clone());
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        assert!(
            rows.end * self.last <= self.len && cols.end <= self.last,
            "the block is outside the outputs"
        );
        let whole = cols == (0..self.last);
        let program = match &self.block {
            Some(program) if !whole => program,
            _ => {
                let range = rows.start * self.last + cols.start..(rows.end - 1) * self.last + cols.end;
                // SAFETY: guaranteed by the caller; the block is contiguous: whole rows, or part of
                // one row.
                return unsafe { self.run_flat(isa, range, operands, outputs, scratch) };
            }
        };
        assert!(scratch.len() >= program.scratch_bytes(), "scratch memory is too small");
        let high = (program.capacity() / cols.len()).clamp(1, rows.len());
        let wide = cols.len().min(program.capacity());
        let span = Tile { row: rows.start, rows: high, col: cols.start, cols: wide };
        let span = (wide == cols.len()).then_some(span);
        // SAFETY: guaranteed by the caller; all tiles are inside the block.
        unsafe {
            let mut run = program.begin(isa, operands, outputs, scratch.as_mut_ptr(), span);
            for row in rows.clone().step_by(high) {
                for col in cols.clone().step_by(wide) {
                    let tile =
                        Tile { row, rows: high.min(rows.end - row), col, cols: wide.min(cols.end - col) };
                    let at = row * self.last + col;
                    run.tile(tile, (tile.rows == 1).then_some(at));
                    self.store(isa, &run, program, outputs, tile, at, self.last);
                }
            }
        }
    }

    /// # Safety
    /// Same as [`Map::run`].
    unsafe fn run_flat(
        &self,
        isa: Isa,
        range: Range<usize>,
        operands: &[*const u8],
        outputs: &[*mut u8],
        scratch: &mut [u8],
    ) {
        if range.is_empty() {
            return;
        }
        assert!(scratch.len() >= self.flat.scratch_bytes(), "scratch memory is too small");
        let rows = range.len().div_ceil(self.flat.inner());
        // SAFETY: guaranteed by the caller; all tiles are inside the range.
        unsafe {
            let mut run = self.flat.begin_flat(isa, operands, outputs, scratch.as_mut_ptr(), rows);
            let mut at = range.start;
            while at < range.end {
                let tile = self.flat.tile_at(at, range.end);
                run.tile(tile, Some(at));
                self.store(isa, &run, &self.flat, outputs, tile, at, tile.cols);
                at += tile.len();
            }
        }
    }

    /// Writes a tile's results to the outputs, from position `at` with rows `pitch` elements apart.
    ///
    /// # Safety
    /// Same as [`Map::run`]; the tile has just been computed.
    #[expect(clippy::too_many_arguments, reason = "a tile's results and where they go")]
    unsafe fn store(
        &self,
        isa: Isa,
        run: &Run<'_>,
        program: &Program,
        outputs: &[*mut u8],
        tile: Tile,
        at: usize,
        pitch: usize,
    ) {
        for (o, (&dtype, &out)) in self.outputs.iter().zip(outputs).enumerate() {
            let (value, class) = (run.result(o), program.class(o));
            let dst = out.wrapping_add(at * dtype.size());
            if value.ptr == dst {
                // The step has already written it there.
                continue;
            }
            let (rows, cols) = if pitch == tile.cols { (1, tile.len()) } else { (tile.rows, tile.cols) };
            for row in 0..rows {
                let step = if value.scalar { 0 } else { row * cols * class_size(class) };
                let piece = Value { ptr: value.ptr.wrapping_add(step), scalar: value.scalar };
                let dst = dst.wrapping_add(row * pitch * dtype.size());
                // SAFETY: the rows are inside the output; the value is in scratch memory, in
                // another output, or in an operand that no output overlaps.
                unsafe { steps::store(isa, class, dtype, cols, piece, dst) };
            }
        }
    }
}
