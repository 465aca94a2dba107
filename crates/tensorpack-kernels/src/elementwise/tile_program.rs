//! Expressions compiled to run over tiles: pieces of the iteration space small enough that all
//! intermediate results stay in the L1 cache.
//!
//! The space is a sequence of rows of its last dimension. A tile is several whole rows, a part of
//! one row, or (for blocks) the same part of several rows. Each step runs over a whole tile before
//! the next step. Results that are the same for every element, or for every row, are computed once
//! and kept. Operands that already have the right type and layout are read in place. All other
//! results share as few buffers as possible.

use crate::Isa;
use crate::elementwise::Operand;
use crate::elementwise::iteration_space::Space;
use crate::elementwise::steps::{self, Value};
use crate::expr::{Binary, Class, Expr, Step, Unary};
use crate::scalar::element::{class_size, is_native};
use tensorpack_tensor::DType;

/// Minimum number of bytes of one value over a tile: enough to outweigh the loop overhead.
const MIN_TILE: usize = 4096;
/// Bytes of all values over a tile, unless that makes it too small: what fits in the L1 cache.
const ALL_BUFFERS: usize = 16 * 1024;

/// The number of elements of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TileSize {
    /// As many as the L1 cache holds, with at most this many bytes per value.
    Fitting(usize),
    /// A fixed number, whatever the expression: for results that depend on the tile boundaries.
    Elements(usize),
}

/// A piece of the space as a matrix of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) col: usize,
    pub(crate) cols: usize,
}

impl Tile {
    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }
}

/// How often a result changes; the variants are in order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rate {
    /// Once: the same for all elements.
    Once,
    /// Per column: the same for all rows.
    Column,
    /// Per element.
    Element,
}

#[derive(Clone, Debug)]
enum Code {
    Const(f64),
    /// Operand `index`, or the offset itself if there is none.
    Load {
        index: Option<(usize, DType)>,
        outer: Vec<isize>,
        inner: isize,
        dense: bool,
        /// Never read in place: the value outlives the operand, whose memory an output may
        /// overwrite.
        copy: bool,
    },
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Select(Class, [usize; 3]),
    Cast(Class, usize),
}

impl Code {
    fn inputs(&self) -> Vec<usize> {
        match *self {
            Code::Const(_) | Code::Load { .. } => vec![],
            Code::Unary(_, a) | Code::Cast(_, a) => vec![a],
            Code::Binary(_, a, b) => vec![a, b],
            Code::Select(_, regs) => regs.to_vec(),
        }
    }
}

#[derive(Clone, Debug)]
struct Instr {
    reg: usize,
    class: Class,
    code: Code,
    /// Offset of the result in the scratch memory.
    slot: usize,
    /// The output that the result may be written to directly.
    direct: Option<usize>,
}

/// An expression compiled to run over tiles of a space.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Sizes of the dimensions outside the rows.
    outer: Vec<usize>,
    /// Length of a row.
    inner: usize,
    /// Maximum number of elements of a tile.
    capacity: usize,
    once: Vec<Instr>,
    column: Vec<Instr>,
    element: Vec<Instr>,
    /// The register and class of each output.
    results: Vec<(usize, Class)>,
    /// For each operand, the last of the `element` instructions that reads its memory.
    last_read: Vec<Option<usize>>,
    registers: usize,
    scratch: usize,
}

impl Program {
    /// Compiles `expr` over a merged space. Tiles are multiples of `unit` elements if that is not
    /// too many. `outputs` lists the element types of the results that are stored.
    pub(crate) fn new(
        space: &Space,
        operands: &[Operand],
        expr: &Expr,
        outputs: &[DType],
        unit: usize,
        size: TileSize,
    ) -> Program {
        let (outer, inner) = match space.dims.split_last() {
            Some((&inner, outer)) => (outer.to_vec(), inner),
            None => (Vec::new(), 1),
        };
        let mut program = Program {
            outer,
            inner,
            capacity: 64,
            once: Vec::new(),
            column: Vec::new(),
            element: Vec::new(),
            results: Vec::new(),
            last_read: vec![None; operands.len()],
            registers: expr.steps.len(),
            scratch: 0,
        };
        program.compile(space, operands, expr, outputs);
        let last_use = last_uses(&program.element, expr.steps.len(), &program.results);
        // Allocate once to find the memory per element, and again for as many elements as fit.
        let each = (program.allocate(&last_use) / program.capacity).max(1);
        let widest =
            program.column.iter().chain(&program.element).map(|i| class_size(i.class)).max().unwrap_or(4);
        let normal = match size {
            TileSize::Elements(n) => n,
            TileSize::Fitting(bytes) => {
                let most = bytes.max(MIN_TILE) / widest;
                (ALL_BUFFERS / each / 16 * 16).clamp(MIN_TILE / widest, most)
            }
        };
        let unit = unit.max(1);
        program.capacity = if unit <= 2 * normal { unit * (normal / unit).max(1) } else { normal };
        program.allocate(&last_use);
        program
    }

    fn compile(&mut self, space: &Space, operands: &[Operand], expr: &Expr, outputs: &[DType]) {
        // Casts to the same class are aliases of their source.
        let mut alias: Vec<usize> = (0..expr.steps.len()).collect();
        for (i, step) in expr.steps.iter().enumerate() {
            match *step {
                Step::Cast(class, r) if expr.class(r) == class => alias[i] = alias[r.0 as usize],
                _ => {}
            }
        }
        let class = |i: usize| expr.class(crate::expr::Reg(i as u16));
        self.results = expr.outputs.iter().map(|r| (alias[r.0 as usize], expr.class(*r))).collect();
        let is_result = |reg: usize| self.results.iter().any(|&(r, _)| r == reg);

        let mut rates = vec![Rate::Once; expr.steps.len()];
        let mut counters = operands.len();
        let mut lists: [Vec<Instr>; 3] = Default::default();
        for (i, step) in expr.steps.iter().enumerate() {
            let at = |r: crate::expr::Reg| alias[r.0 as usize];
            let mut load = |source: usize, index| {
                let (inner, outer) = match space.strides[source].split_last() {
                    Some((&inner, outer)) => (inner, outer.to_vec()),
                    None => (0, Vec::new()),
                };
                rates[i] = match (outer.iter().all(|&s| s == 0), inner) {
                    (true, 0) => Rate::Once,
                    (true, _) if !outer.is_empty() => Rate::Column,
                    _ => Rate::Element,
                };
                let dense = is_dense(&self.outer, self.inner, &outer, inner);
                Code::Load { index, outer, inner, dense, copy: !outputs.is_empty() && is_result(i) }
            };
            let code = match *step {
                Step::Operand { index, .. } => {
                    load(index as usize, Some((index as usize, operands[index as usize].dtype)))
                }
                Step::Index { .. } => {
                    counters += 1;
                    load(counters - 1, None)
                }
                Step::Const(x, _) => Code::Const(x),
                Step::Unary(op, a) => Code::Unary(op, at(a)),
                Step::Binary(op, a, b) => Code::Binary(op, at(a), at(b)),
                Step::Select(c, a, b) => Code::Select(expr.class(c), [at(c), at(a), at(b)]),
                Step::Cast(_, a) => Code::Cast(expr.class(a), at(a)),
            };
            if alias[i] != i {
                continue;
            }
            if let Some(rate) = code.inputs().iter().map(|&r| rates[r]).max() {
                rates[i] = rate;
            }
            let instr = Instr { reg: i, class: class(i), code, slot: 0, direct: None };
            lists[rates[i] as usize].push(instr);
        }
        [self.once, self.column, self.element] = lists;
        for (o, &dtype) in outputs.iter().enumerate() {
            let (reg, class) = self.results[o];
            if let Some(instr) = self.element.iter_mut().find(|i| i.reg == reg)
                && instr.direct.is_none()
                && is_native(dtype, class)
                && o < 64
            {
                instr.direct = Some(o);
            }
        }
    }

    /// Allocates scratch memory for every result, and finds the last read of each operand. Returns
    /// the bytes of the tile buffers.
    fn allocate(&mut self, last_use: &[Option<usize>]) -> usize {
        let mut end = (self.registers * size_of::<Value>()).next_multiple_of(64);
        let mut take = |bytes: usize| {
            let at = end;
            end += bytes.next_multiple_of(64);
            at
        };
        for instr in &mut self.once {
            instr.slot = take(8);
        }
        let first = take(0);
        for instr in &mut self.column {
            instr.slot = take(class_size(instr.class) * self.capacity);
        }
        // A buffer is free after the last use of its value, not during it: the result of a loop
        // must not overlap its arguments.
        let mut free: [Vec<usize>; 2] = Default::default();
        let mut slots: Vec<Option<(usize, usize)>> = vec![None; self.registers];
        for (at, instr) in self.element.iter_mut().enumerate() {
            let size = class_size(instr.class);
            instr.slot = free[size / 8].pop().unwrap_or_else(|| take(size * self.capacity));
            slots[instr.reg] = Some((size, instr.slot));
            let mut done = instr.code.inputs();
            done.push(instr.reg);
            done.sort_unstable();
            done.dedup();
            for reg in done {
                if last_use[reg] == Some(at)
                    && let Some((size, slot)) = slots[reg].take()
                {
                    free[size / 8].push(slot);
                }
            }
            if let Code::Load { index: Some((operand, _)), .. } = instr.code {
                let read = last_use[instr.reg].unwrap_or(at).max(at);
                self.last_read[operand] = self.last_read[operand].max(Some(read));
            }
        }
        self.scratch = end;
        end - first
    }

    /// Returns the bytes of scratch memory needed.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    /// Maximum number of elements of a tile.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the length of a row.
    pub(crate) fn inner(&self) -> usize {
        self.inner
    }

    /// Returns the class of a result.
    pub(crate) fn class(&self, output: usize) -> Class {
        self.results[output].1
    }

    /// Returns the tile that starts at flat position `at` and ends at `end` at the latest.
    pub(crate) fn tile_at(&self, at: usize, end: usize) -> Tile {
        let (row, col) = (at / self.inner, at % self.inner);
        if col == 0 && self.inner <= self.capacity && end - at >= self.inner {
            let rows = ((end - at) / self.inner).min(self.capacity / self.inner);
            Tile { row, rows, col, cols: self.inner }
        } else {
            Tile { row, rows: 1, col, cols: (self.inner - col).min(end - at).min(self.capacity) }
        }
    }

    /// Prepares to run tiles within flat positions `from..to`.
    ///
    /// # Safety
    /// The operands must be those that the program was compiled for. `scratch` must have
    /// [`Program::scratch_bytes`] bytes and be aligned to 64. All must outlive the result.
    pub(crate) unsafe fn begin_flat<'a>(
        &'a self,
        isa: Isa,
        operands: &'a [*const u8],
        outputs: &'a [*mut u8],
        scratch: *mut u8,
        rows: usize,
    ) -> Run<'a> {
        let rows = rows.clamp(1, (self.capacity / self.inner.max(1)).max(1));
        let span = (self.inner <= self.capacity).then_some(Tile { row: 0, rows, col: 0, cols: self.inner });
        // SAFETY: guaranteed by the caller.
        unsafe { self.begin(isa, operands, outputs, scratch, span) }
    }

    /// Prepares to run tiles with columns within those of `span` (any columns if it is `None`) and
    /// with no more rows than it.
    ///
    /// # Safety
    /// Same as [`Program::begin_flat`].
    pub(crate) unsafe fn begin<'a>(
        &'a self,
        isa: Isa,
        operands: &'a [*const u8],
        outputs: &'a [*mut u8],
        scratch: *mut u8,
        span: Option<Tile>,
    ) -> Run<'a> {
        let mut direct = 0;
        for (at, instr) in self.element.iter().enumerate() {
            if let Some(o) = instr.direct {
                // Not if an operand in the same memory is read later.
                let clear = |i: usize| operands[i].cast_mut() != outputs[o] || self.last_read[i] < Some(at);
                if (0..operands.len()).all(clear) {
                    direct |= 1u64 << o;
                }
            }
        }
        let cached = span.is_some();
        let mut run = Run { program: self, isa, operands, outputs, scratch, direct, cached, col: 0 };
        // SAFETY: the `once` instructions read single elements, the `column` instructions those of
        // the span, which exist.
        unsafe {
            execute(&run, &self.once, Tile { row: 0, rows: 1, col: 0, cols: 1 }, None);
            if let Some(span) = span {
                run.col = span.col;
                execute(&run, &self.column, span, None);
            }
        }
        run
    }
}

/// A running program: its operands and scratch memory.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    program: &'a Program,
    isa: Isa,
    operands: &'a [*const u8],
    outputs: &'a [*mut u8],
    scratch: *mut u8,
    /// Which outputs are written directly, one bit each.
    direct: u64,
    /// Whether the results of the `column` instructions are computed.
    cached: bool,
    /// The first column of those results.
    col: usize,
}

impl Run<'_> {
    /// Computes a tile. If `at` is given, the tile is contiguous in the outputs from this flat
    /// position on, and results may be written there directly.
    ///
    /// # Safety
    /// The tile must lie within the space, and within the range or span that the run was prepared
    /// for.
    pub(crate) unsafe fn tile(&mut self, tile: Tile, at: Option<usize>) {
        // SAFETY: the tile is within the space.
        unsafe {
            if !self.cached {
                execute(self, &self.program.column, tile, None);
            } else if tile.col != self.col {
                let shift = tile.col as isize - self.col as isize;
                for instr in &self.program.column {
                    let value = &mut *self.values().add(instr.reg);
                    if !value.scalar {
                        value.ptr = value.ptr.wrapping_offset(shift * class_size(instr.class) as isize);
                    }
                }
                self.col = tile.col;
            }
            execute(self, &self.program.element, tile, at);
        }
    }

    /// Returns the location of output `output` of the last tile.
    pub(crate) fn result(&self, output: usize) -> Value {
        // SAFETY: the register was set when the tile was computed.
        unsafe { *self.values().add(self.program.results[output].0) }
    }

    fn values(&self) -> *mut Value {
        self.scratch.cast()
    }
}

/// Returns whether these strides are dense.
fn is_dense(outer_dims: &[usize], inner_dim: usize, outer: &[isize], inner: isize) -> bool {
    let mut expect = inner_dim as isize;
    inner == 1
        && outer_dims.iter().zip(outer).rev().all(|(&n, &s)| {
            let ok = s == expect;
            expect *= n as isize;
            ok
        })
}

/// Returns, for each register, the last instruction that uses it; `None` for results, which are
/// kept.
fn last_uses(list: &[Instr], registers: usize, results: &[(usize, Class)]) -> Vec<Option<usize>> {
    let mut last = vec![None; registers];
    for (at, instr) in list.iter().enumerate() {
        last[instr.reg] = Some(at);
        for reg in instr.code.inputs() {
            last[reg] = Some(at);
        }
    }
    for &(reg, _) in results {
        last[reg] = None;
    }
    last
}

/// Runs instructions over a tile.
///
/// # Safety
/// The tile must lie within the program's space, and the results that the instructions use must be
/// computed.
unsafe fn execute(run: &Run<'_>, list: &[Instr], tile: Tile, at: Option<usize>) {
    let values = run.values();
    // SAFETY: registers are set before they are used, as steps only use earlier ones.
    let value = |reg: usize| unsafe { *values.add(reg) };
    for instr in list {
        let class = instr.class;
        let slot = run.scratch.wrapping_add(instr.slot);
        // A result of scalars is a scalar, computed once, in its own slot.
        let target = |scalar: bool| match (instr.direct, at) {
            _ if scalar => (1, slot),
            (Some(o), Some(at)) if run.direct >> o & 1 == 1 => {
                (tile.len(), run.outputs[o].wrapping_add(at * class_size(class)))
            }
            _ => (tile.len(), slot),
        };
        // SAFETY: slots hold the capacity of a tile and overlap none of the inputs, which have as
        // many elements as the tile or are scalars; direct outputs overlap no operand that is read
        // later.
        let result = unsafe {
            match instr.code {
                Code::Const(x) => {
                    steps::load(run.isa, DType::F64, class, 1, (&raw const x).cast(), 0, slot);
                    Value { ptr: slot, scalar: true }
                }
                Code::Load { .. } => load(run, instr, tile, target(false).1, slot),
                Code::Unary(op, a) => {
                    let a = value(a);
                    let (n, dst) = target(a.scalar);
                    steps::unary(run.isa, op, class, n, a.ptr, dst);
                    Value { ptr: dst, scalar: a.scalar }
                }
                Code::Binary(op, a, b) => {
                    let (a, b) = (value(a), value(b));
                    let scalar = a.scalar && b.scalar;
                    let (n, dst) = target(scalar);
                    steps::binary(run.isa, op, class, n, a, b, dst);
                    Value { ptr: dst, scalar }
                }
                Code::Select(test, [c, a, b]) => {
                    let (c, a, b) = (value(c), value(a), value(b));
                    let scalar = c.scalar && a.scalar && b.scalar;
                    let (n, dst) = target(scalar);
                    steps::select(run.isa, test, class, n, c, [a, b], dst);
                    Value { ptr: dst, scalar }
                }
                Code::Cast(from, a) => {
                    let a = value(a);
                    let (n, dst) = target(a.scalar);
                    steps::cast(run.isa, from, class, n, a.ptr, dst);
                    Value { ptr: dst, scalar: a.scalar }
                }
            }
        };
        // SAFETY: there is a value for every register.
        unsafe { *values.add(instr.reg) = result };
    }
}

/// Loads a tile of an operand (or of offsets) into `dst`, or returns its location if it can be read
/// in place.
///
/// # Safety
/// Same as [`execute`].
unsafe fn load(run: &Run<'_>, instr: &Instr, tile: Tile, dst: *mut u8, slot: *mut u8) -> Value {
    let Code::Load { index, ref outer, inner, dense, copy } = instr.code else { unreachable!("only loads") };
    let (dims, class) = (&run.program.outer, instr.class);
    let col = tile.col as isize * inner;
    // The offset of a row's first element of the tile.
    let row_offset = |row: usize| {
        let (mut rest, mut offset) = (row, col);
        for (&n, &s) in dims.iter().zip(outer).rev() {
            offset += (rest % n) as isize * s;
            rest /= n;
        }
        offset
    };
    let piece = |n: usize, offset: isize, to: *mut u8| match index {
        Some((operand, dtype)) => {
            let src = run.operands[operand].wrapping_offset(offset * dtype.size() as isize);
            // SAFETY: the offset is that of an element of the tile, and the next n follow with the
            // inner stride.
            unsafe { steps::load(run.isa, dtype, class, n, src, inner, to) }
        }
        // SAFETY: `to` is in a buffer with room for the tile.
        None => unsafe { steps::count(run.isa, class, n, offset, inner, to) },
    };
    if tile.rows == 1 {
        let offset = row_offset(tile.row);
        if inner == 0 {
            piece(1, offset, slot);
            return Value { ptr: slot, scalar: true };
        }
        if let Some((operand, dtype)) = index
            && inner == 1
            && !copy
            && is_native(dtype, class)
        {
            let at = run.operands[operand].wrapping_offset(offset * dtype.size() as isize);
            return Value { ptr: at, scalar: false };
        }
        piece(tile.cols, offset, dst);
        return Value { ptr: dst, scalar: false };
    }
    if let (true, Some((operand, dtype))) = (dense && tile.cols == run.program.inner, index) {
        let offset = (tile.row * tile.cols) as isize;
        if !copy && is_native(dtype, class) {
            let at = run.operands[operand].wrapping_offset(offset * dtype.size() as isize);
            return Value { ptr: at, scalar: false };
        }
        piece(tile.len(), offset, dst);
        return Value { ptr: dst, scalar: false };
    }
    // Row by row; offsets are recomputed only where the innermost outer dimension wraps around.
    let (wrap, step) = (dims.last().copied().unwrap_or(1), outer.last().copied().unwrap_or(0));
    let bytes = tile.cols * class_size(class);
    let mut done = 0;
    while done < tile.rows {
        let row = tile.row + done;
        let count = (wrap - row % wrap).min(tile.rows - done);
        let first = row_offset(row);
        for i in 0..count {
            piece(tile.cols, first + i as isize * step, dst.wrapping_add((done + i) * bytes));
        }
        done += count;
    }
    Value { ptr: dst, scalar: false }
}
