//! Fused reductions: expressions over an iteration space, reduced over some of its dimensions, with
//! several results in one pass over the operands.
//!
//! Every space is brought to the form `[outer, reduced, columns]`. With columns, whole rows of
//! columns are folded together; without, each row of elements is folded by itself. A reduction of
//! many elements to few results is split into pieces, by sizes alone, whose partial results a
//! second phase merges in order.

use crate::Isa;
use crate::elementwise::Operand;
use crate::elementwise::iteration_space::Space;
use crate::elementwise::map::normalize_empty;
use crate::elementwise::steps;
use crate::elementwise::tile_program::{Program, Run, TileSize};
use crate::expr::{Class, Expr};
use crate::reduce::accumulate::{self, WIDE};
use crate::reduce::state::{self, State};
use crate::scalar::element::class_size;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tensorpack_tensor::DType;

/// Minimum number of elements per chunk, if there are as many.
const CHUNK: usize = 32 * 1024;
/// Approximate number of elements in a piece of a long reduction.
const PIECE: usize = 64 * 1024;
/// Maximum number of pieces of a reduction.
const MAX_PIECES: usize = 64;
/// With this many independent parts, none is split into pieces.
const MANY: usize = 32;

/// Approximate number of elements of a tile. Sums are rounded tile by tile, so tiles depend on
/// sizes alone: a result must not depend on which expression was fused into its reduction.
const TILE: TileSize = TileSize::Elements(2048);

/// The kind of a reduction. Over no elements, sums are 0, products 1, maxima the lowest and minima
/// the highest value of the type (infinite for floats), positions 0, and moments NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceKind {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The maximum; NaN if any element is NaN.
    Max,
    /// The minimum; NaN if any element is NaN.
    Min,
    /// The position of the first maximum, in row-major order over the reduced dimensions; NaN
    /// counts as largest.
    ArgMax,
    /// The position of the first minimum; NaN counts as smallest.
    ArgMin,
    /// Two results: the mean and the population variance (divided by the number of elements).
    Moments,
}

impl ReduceKind {
    /// Returns the number of 8-byte planes in an accumulator.
    pub(crate) fn planes(self) -> usize {
        match self {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => 1,
            ReduceKind::ArgMax | ReduceKind::ArgMin | ReduceKind::Moments => 2,
        }
    }

    /// Returns the number of outputs.
    fn outputs(self) -> usize {
        if self == ReduceKind::Moments { 2 } else { 1 }
    }
}

/// One reduction of a kernel.
#[derive(Clone, Debug)]
struct Part {
    kind: ReduceKind,
    class: Class,
    /// Index of its first plane.
    plane: usize,
    /// Indices of its outputs.
    outputs: Range<usize>,
}

/// Reductions of expressions over an iteration space. Outputs are dense over the kept dimensions.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// Sizes of the three parts of the space.
    outer: usize,
    reduced: usize,
    columns: usize,
    parts: Vec<Part>,
    dtypes: Vec<DType>,
    planes: usize,
    program: Program,
    /// Maximum number of results computed side by side: the pitch of their states.
    pitch: usize,
    /// Blocks of columns per outer index.
    blocks: usize,
    /// Steps along `reduced` per piece, and the number of pieces.
    piece: usize,
    pieces: usize,
    /// Blocks (or single results) per chunk.
    group: usize,
}

impl Reduce {
    /// Prepares the reductions of `expr` over the dimensions marked in `reduced`: one kind per
    /// result of the expression, and one type in `outputs` per output of the kinds
    /// ([`ReduceKind::Moments`] has two).
    pub fn new(
        dims: &[usize],
        reduced: &[bool],
        operands: Vec<Operand>,
        expr: Expr,
        kinds: Vec<ReduceKind>,
        outputs: Vec<DType>,
    ) -> Reduce {
        assert_eq!(dims.len(), reduced.len(), "`reduced` needs one flag per dimension");
        assert_eq!(expr.outputs.len(), kinds.len(), "`kinds` needs one kind per result of the expression");
        let (mut plane, mut output) = (0, 0);
        let mut parts = Vec::new();
        for (&kind, &reg) in kinds.iter().zip(&expr.outputs) {
            let outputs = output..output + kind.outputs();
            (plane, output) = (plane + kind.planes(), outputs.end);
            parts.push(Part { kind, class: expr.class(reg), plane: plane - kind.planes(), outputs });
        }
        assert_eq!(outputs.len(), output, "`outputs` needs one type per output");

        // Nothing to reduce, or nothing to keep: the other sizes do not matter, and may be
        // arbitrarily large.
        let nothing_kept = dims.iter().zip(reduced).any(|(&n, &r)| n == 0 && !r);
        let (nothing, operands) = normalize_empty(dims, operands);
        let dims = dims.iter().zip(nothing).zip(reduced);
        let dims: Vec<usize> = dims.map(|((&n, m), &r)| if r || nothing_kept { m } else { n }).collect();
        let groups = reduced.iter().map(|&r| u8::from(r)).collect();
        let mut space = Space::new(&dims, groups, &operands, &expr).squeeze();
        // Kept, then reduced, then kept dimensions; any other order is permuted to kept, then
        // reduced.
        let turns = space.groups.windows(2).filter(|w| w[0] != w[1]).count();
        if turns > 2 || turns == 2 && space.groups[0] == 1 {
            let (kept, gone): (Vec<_>, Vec<_>) = (0..space.dims.len()).partition(|&d| space.groups[d] == 0);
            space = space.permute(&[kept, gone].concat());
        }
        let space = space.merge_but_last();
        let first = space.groups.iter().position(|&g| g == 1).unwrap_or(0);
        let last = space.groups.iter().rposition(|&g| g == 1).map_or(0, |d| d + 1);
        let size = |range: Range<usize>| space.dims[range].iter().product::<usize>();
        let (outer, reduced, columns) = (size(0..first), size(first..last), size(last..space.dims.len()));
        let unit = if columns > 1 { columns } else { reduced };
        let program = Program::new(&space, &operands, &expr, &[], unit, TILE);

        let mut reduce = Reduce {
            outer,
            reduced,
            columns,
            parts,
            dtypes: outputs,
            planes: plane,
            // A multiple of 8, so that all parts of the scratch memory are aligned.
            pitch: program.capacity().next_multiple_of(8),
            program,
            blocks: 1,
            piece: reduced,
            pieces: 1,
            group: 1,
        };
        reduce.partition();
        reduce
    }

    /// Divides the work into chunks and pieces.
    fn partition(&mut self) {
        let (capacity, inner) = (self.program.capacity(), self.program.inner().max(1));
        if self.outer * self.reduced * self.columns == 0 {
            return;
        }
        if self.short_rows() {
            self.group = (CHUNK / self.reduced).next_multiple_of(capacity / self.reduced).max(1);
            return;
        }
        let (mut width, mut step) = (self.columns, capacity);
        if self.columns > 1 {
            step = capacity / self.columns;
            if self.columns > capacity {
                // Whole rows of the innermost dimension, or parts of a row.
                let rows = self.columns / inner;
                (width, step) = (capacity.min(inner), 1);
                self.blocks = rows * inner.div_ceil(width);
                if inner <= capacity {
                    width = inner * (capacity / inner);
                    self.blocks = self.columns.div_ceil(width);
                }
            }
        }
        let (units, elements) = (self.outer * self.blocks, self.reduced * width);
        if units >= MANY || elements <= PIECE {
            self.group = (CHUNK / elements).max(1);
        } else {
            let pieces = elements.div_ceil(PIECE).min(MAX_PIECES);
            self.piece = self.reduced.div_ceil(pieces).next_multiple_of(step);
            self.pieces = self.reduced.div_ceil(self.piece);
        }
    }

    /// Returns whether results reduce rows of elements so short that a tile holds whole rows.
    fn short_rows(&self) -> bool {
        self.columns == 1 && self.reduced <= self.program.capacity()
    }

    /// Returns the columns of a block.
    fn block(&self, block: usize) -> Range<usize> {
        let (capacity, inner) = (self.program.capacity(), self.program.inner());
        if self.blocks == 1 {
            0..self.columns
        } else if inner <= capacity {
            let width = inner * (capacity / inner);
            block * width..((block + 1) * width).min(self.columns)
        } else {
            let each = inner.div_ceil(capacity);
            let (row, part) = (block / each * inner, block % each * capacity);
            row + part..row + (part + capacity).min(inner)
        }
    }

    /// Returns the number of phases. All chunks of a phase must be done before the next phase.
    pub fn phases(&self) -> usize {
        if self.pieces > 1 { 2 } else { 1 }
    }

    /// Returns the number of chunks of a phase.
    pub fn chunks(&self, phase: usize) -> usize {
        let units = self.outer * self.blocks;
        if units * self.columns == 0 {
            0
        } else if self.reduced == 0 {
            1
        } else if phase == 1 {
            units
        } else {
            units.div_ceil(self.group) * self.pieces
        }
    }

    /// Returns the bytes of memory, aligned to 64, for the partial results that phase 0 passes to
    /// phase 1.
    pub fn shared_bytes(&self) -> usize {
        if self.pieces > 1 { self.outer * self.blocks * self.pieces * self.state_bytes() } else { 0 }
    }

    fn state_bytes(&self) -> usize {
        self.planes * self.pitch * 8
    }

    /// Returns the bytes of scratch memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        self.program.scratch_bytes() + self.pitch * 8 + self.temp_bytes() + self.state_bytes()
    }

    fn temp_bytes(&self) -> usize {
        3 * 8 * self.pitch.max(WIDE)
    }

    /// Runs one chunk of a phase.
    ///
    /// # Safety
    /// Every operand must be readable at every offset that its strides reach, and every output must
    /// be writable in full and overlap nothing else. `shared` must have [`Reduce::shared_bytes`]
    /// bytes, be the same for all chunks, and hold in phase 1 what phase 0 wrote. `scratch` must be
    /// aligned to 64 bytes, and the CPU must support `isa`.
    #[expect(clippy::too_many_arguments, reason = "kernels take what they read and write")]
    pub unsafe fn run(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        operands: &[*const u8],
        outputs: &[*mut u8],
        shared: *mut u8,
        scratch: &mut [u8],
    ) {
        assert!(scratch.len() >= self.scratch_bytes(), "scratch memory is too small");
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self.reduced == 0 {
                for part in &self.parts {
                    let len = self.outer * self.columns;
                    self.with_outputs(part, outputs, |o| {
                        state::finish_empty(isa, part.kind, part.class, o, len);
                    });
                }
                return;
            }
            if phase == 1 {
                return self.merge_pieces(isa, chunk, outputs, shared);
            }
            let mut at = scratch.as_mut_ptr();
            let mut take = |bytes: usize| {
                let from = at;
                at = from.wrapping_add(bytes);
                from
            };
            let program = take(self.program.scratch_bytes());
            let (state, flat, temp) =
                (take(self.state_bytes()), take(self.pitch * 8), take(self.temp_bytes()));
            let rows = self.outer * self.reduced * self.columns / self.program.inner();
            let run = self.program.begin_flat(isa, operands, &[], program, rows);
            let mut work = Work { reduce: self, isa, run, state: state.cast(), flat, temp: temp.cast() };
            let units = self.outer * self.blocks;
            if self.short_rows() {
                return work.short_rows(chunk * self.group..((chunk + 1) * self.group).min(units), outputs);
            }
            let (group, piece) = (chunk / self.pieces, chunk % self.pieces);
            for unit in group * self.group..((group + 1) * self.group).min(units) {
                if self.pieces > 1 {
                    let index = unit * self.pieces + piece;
                    work.state = shared.wrapping_add(index * self.state_bytes()).cast();
                }
                work.piece(unit, piece);
                if self.pieces == 1 {
                    self.finish(isa, unit, work.state, outputs);
                }
            }
        }
    }

    /// Returns the state of a part's results within the planes at `state`.
    fn state(&self, part: &Part, state: *mut u64, width: usize) -> State {
        State { at: state.wrapping_add(part.plane * self.pitch), pitch: self.pitch, width }
    }

    fn piece_len(&self, piece: usize) -> usize {
        self.piece.min(self.reduced - piece * self.piece)
    }

    /// Calls `f` with a part's outputs and their types.
    fn with_outputs(&self, part: &Part, outputs: &[*mut u8], f: impl FnOnce(&[(*mut u8, DType)])) {
        let at = |i: usize| (outputs[i], self.dtypes[i]);
        let range = part.outputs.clone();
        match range.len() {
            1 => f(&[at(range.start)]),
            _ => f(&[at(range.start), at(range.start + 1)]),
        }
    }

    /// # Safety
    /// Same as [`Reduce::run`].
    unsafe fn merge_pieces(&self, isa: Isa, unit: usize, outputs: &[*mut u8], shared: *mut u8) {
        let at = |piece| shared.wrapping_add((unit * self.pieces + piece) * self.state_bytes()).cast();
        let width = self.block(unit % self.blocks).len();
        for part in &self.parts {
            let into = self.state(part, at(0), width);
            let mut seen = self.piece_len(0);
            for piece in 1..self.pieces {
                let n = self.piece_len(piece);
                let from = self.state(part, at(piece), width);
                // SAFETY: phase 0 has written these, and no other chunk accesses them.
                unsafe { state::merge(part.kind, part.class, into, seen, from, n) };
                seen += n;
            }
        }
        // SAFETY: the state of the first piece now includes all pieces.
        unsafe { self.finish(isa, unit, at(0), outputs) };
    }

    /// Writes a unit's results.
    ///
    /// # Safety
    /// Same as [`Reduce::run`]; the state must be complete.
    unsafe fn finish(&self, isa: Isa, unit: usize, state: *mut u64, outputs: &[*mut u8]) {
        let block = self.block(unit % self.blocks);
        let at = unit / self.blocks * self.columns + block.start;
        for part in &self.parts {
            let state = self.state(part, state, block.len());
            self.with_outputs(part, outputs, |o| {
                // SAFETY: guaranteed by the caller.
                unsafe { state::finish(isa, part.kind, part.class, state, self.reduced, o, at) };
            });
        }
    }
}

/// The chunk being run.
struct Work<'a> {
    reduce: &'a Reduce,
    isa: Isa,
    run: Run<'a>,
    state: *mut u64,
    /// Room for a tile of a scalar result.
    flat: *mut u8,
    temp: *mut u64,
}

impl Work<'_> {
    /// Returns the address of the tile of a part's expression.
    ///
    /// # Safety
    /// A tile of `n` elements must have been computed.
    unsafe fn data(&self, part: usize, n: usize) -> *const u8 {
        let value = self.run.result(part);
        if !value.scalar {
            return value.ptr;
        }
        let class = self.reduce.parts[part].class;
        let native = match class {
            Class::F32 => DType::F32,
            Class::F64 => DType::F64,
            Class::I64 => DType::I64,
        };
        debug_assert!(n * class_size(class) <= self.reduce.pitch * 8, "a tile exceeds its buffer");
        // SAFETY: there is room for a tile, and nothing else uses it.
        unsafe { steps::store(self.isa, class, native, n, value, self.flat) };
        self.flat
    }

    /// Computes results `rows`, each from a row of elements that fits in a tile.
    ///
    /// # Safety
    /// Same as [`Reduce::run`].
    unsafe fn short_rows(&mut self, rows: Range<usize>, outputs: &[*mut u8]) {
        let (reduce, len) = (self.reduce, self.reduce.reduced);
        let (mut at, end) = (rows.start * len, rows.end * len);
        while at < end {
            let tile = reduce.program.tile_at(at, end);
            // SAFETY: the tile is within the space; the rest is guaranteed by the caller.
            unsafe {
                self.run.tile(tile, None);
                for (p, part) in reduce.parts.iter().enumerate() {
                    let state = reduce.state(part, self.state, tile.len() / len);
                    state::clear(part.kind, part.class, state);
                    let data = self.data(p, tile.len());
                    accumulate::fold_rows(self.isa, part.kind, part.class, data, len, 0, state);
                    reduce.with_outputs(part, outputs, |o| {
                        state::finish(self.isa, part.kind, part.class, state, len, o, at / len);
                    });
                }
            }
            at += tile.len();
        }
    }

    /// Folds one piece of a unit into the state.
    ///
    /// # Safety
    /// Same as [`Reduce::run`].
    unsafe fn piece(&mut self, unit: usize, piece: usize) {
        let reduce = self.reduce;
        let block = reduce.block(unit % reduce.blocks);
        for part in &reduce.parts {
            // SAFETY: the state has room for a block.
            unsafe { state::clear(part.kind, part.class, reduce.state(part, self.state, block.len())) };
        }
        let first = piece * reduce.piece;
        let outer = unit / reduce.blocks * reduce.reduced;
        let end = first + reduce.piece_len(piece);
        let mut r = first;
        while r < end {
            let at = (outer + r) * reduce.columns + block.start;
            // With one block, the tile may continue over the next rows of columns.
            let whole = reduce.blocks == 1;
            let limit = if whole { (outer + end) * reduce.columns } else { at + block.len() };
            let tile = reduce.program.tile_at(at, limit);
            let rows = tile.len() / block.len();
            // SAFETY: the tile is within the space; the rest is guaranteed by the caller.
            unsafe {
                self.run.tile(tile, None);
                for (p, part) in reduce.parts.iter().enumerate() {
                    let data = self.data(p, tile.len());
                    let state = reduce.state(part, self.state, block.len());
                    // Positions count from the start of the reduction, moments from the start of
                    // the piece.
                    let seen = if part.kind == ReduceKind::Moments { r - first } else { r };
                    if reduce.columns > 1 {
                        accumulate::fold_columns(
                            self.isa, part.kind, part.class, data, rows, seen, state, self.temp,
                        );
                    } else {
                        accumulate::fold_rows(self.isa, part.kind, part.class, data, rows, seen, state);
                    }
                }
            }
            r += rows;
        }
    }
}
