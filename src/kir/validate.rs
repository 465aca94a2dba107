//! Validates programs before engines compile them.
//!
//! Operations are safe code that users may write, and an engine runs kernels over plain memory. So
//! nothing that an operation's `lower` emits is trusted: every view must stay within its buffer,
//! and every kernel must fit its operands and outputs in number, type and size. Validation is
//! linear in the size of the program.

use super::descriptors::padded_sizes;
use super::view::elements;
use super::{
    Attention, AttentionKind, Binary, Buffer, BufferId, BufferKind, ContractKind, Expr, GatherKind, Kernel,
    KernelNode, MapBody, Pool, PoolKind, Program, ReduceKind, Reg, Shards, Step, View,
};
use tensorpack_tensor::{DType, Error, ErrorKind, Result, element_count};

/// Maximum number of elements of a reduction. A reduction of a broadcast view needs no memory for
/// its operand, so nothing else would stop one that takes years.
const MAX_REDUCED: usize = 1 << 42;

/// The signature of a program: types and sizes of its feeds and variables.
pub(crate) struct Signature<'a> {
    /// The feeds, by index.
    pub(crate) feeds: Vec<(DType, &'a [usize])>,
    /// The variables of the graph, by index.
    pub(crate) variables: Vec<(DType, &'a [usize])>,
}

/// Checks a program. The error names the operation.
pub(crate) fn validate(program: &Program) -> Result<()> {
    let mut written = Vec::with_capacity(program.buffers.len());
    for (i, buffer) in program.buffers.iter().enumerate() {
        validate_buffer(buffer).map_err(|e| e.within(format!("buffer %{i}")))?;
        written.push(!matches!(buffer.kind, BufferKind::Temp));
    }
    let mut checks = Checks { program, written };
    for node in &program.kernels {
        checks.node(node).map_err(|e| {
            e.within(format!("the {} kernel", node.kernel.name()))
                .within(&node.origin.name)
                .at(node.origin.site)
                .note("the operation's `lower` emits a kernel that does not fit its operands or outputs")
        })?;
    }
    require_count("origins of fetches", program.fetch_origins.len(), program.fetches.len())?;
    let results = program.fetches.iter().map(|v| ("a fetch", v));
    let results = results.chain(program.costs.iter().map(|v| ("a cost", v)));
    let results = results.chain(program.kept.iter().map(|v| ("a gradient", v)));
    for (what, view) in results.chain(program.updates.iter().map(|u| ("an update", &u.value))) {
        checks.read(view).map_err(|e| checks.name_producer(e.within(what), view.buffer))?;
    }
    Ok(())
}

/// Checks that a program reads and updates only feeds and variables of its signature, with their
/// types and sizes.
pub(crate) fn validate_signature(program: &Program, signature: &Signature<'_>) -> Result<()> {
    let matches = |known: &[(DType, &[usize])], i: usize, what: &str, dtype: DType, sizes: &[usize]| {
        let Some(&(d, s)) = known.get(i) else {
            return Err(Error::argument(format!(
                "the program uses {what} {i}, but there are {}",
                known.len()
            )));
        };
        if (d, s) != (dtype, sizes) {
            let why = format!("{what} {i} is {d}{s:?}, but the program reads it as {dtype}{sizes:?}");
            return Err(if d == dtype { Error::shape(why) } else { Error::dtype(why) });
        }
        Ok(())
    };
    for b in &program.buffers {
        match b.kind {
            BufferKind::Feed(i) => matches(&signature.feeds, i, "feed", b.dtype, &b.sizes)?,
            BufferKind::Variable(i) | BufferKind::Snapshot(i) => {
                matches(&signature.variables, i, "variable", b.dtype, &b.sizes)?;
            }
            BufferKind::Temp | BufferKind::Constant(_) => {}
        }
    }
    let mut updated = vec![false; signature.variables.len()];
    for u in &program.updates {
        matches(&signature.variables, u.variable, "variable", u.value.dtype, &u.value.sizes)?;
        if std::mem::replace(&mut updated[u.variable], true) {
            return Err(Error::argument(format!("variable {} is updated twice", u.variable)));
        }
    }
    Ok(())
}

/// Checks that a view stays within its buffer, whatever its strides, and has its type.
pub(crate) fn validate_view(program: &Program, view: &View) -> Result<()> {
    let Some(buffer) = program.buffers.get(view.buffer.0 as usize) else {
        return Err(Error::argument(format!("a view of buffer %{}, which does not exist", view.buffer.0)));
    };
    if view.dtype != buffer.dtype {
        return Err(Error::dtype(format!(
            "a view has dtype {}, but its buffer %{} is {}",
            view.dtype, view.buffer.0, buffer.dtype
        )));
    }
    if view.sizes.len() != view.strides.len() {
        return Err(Error::shape(format!(
            "a view of sizes {:?} has {} strides {:?}",
            view.sizes,
            view.strides.len(),
            view.strides
        )));
    }
    element_count(&view.sizes)?;
    let len = buffer.len();
    let within = match view.is_empty() {
        true => view.offset <= len,
        false => span(view).is_some_and(|(low, high)| low >= 0 && high < len as isize),
    };
    match within {
        true => Ok(()),
        false => Err(Error::shape(format!(
            "a view of sizes {:?}, strides {:?} and offset {} leaves buffer %{}, which has {len} elements",
            view.sizes, view.strides, view.offset, view.buffer.0
        ))),
    }
}

/// Returns the lowest and the highest offset of a non-empty view; `None` on overflow.
fn span(view: &View) -> Option<(isize, isize)> {
    let from = isize::try_from(view.offset).ok()?;
    view.sizes.iter().zip(&view.strides).try_fold((from, from), |(low, high), (&n, &stride)| {
        match n {
            // The stride of a single index is never used.
            0 | 1 => Some((low, high)),
            _ => {
                let last = isize::try_from(n - 1).ok()?.checked_mul(stride)?;
                // Kernels compute `n * stride` when they merge dimensions.
                last.checked_add(stride)?;
                Some((low.checked_add(last.min(0))?, high.checked_add(last.max(0))?))
            }
        }
    })
}

fn validate_buffer(buffer: &Buffer) -> Result<()> {
    element_count(&buffer.sizes)?;
    match &buffer.kind {
        BufferKind::Constant(value) if (value.dtype(), value.sizes()) != (buffer.dtype, &buffer.sizes) => {
            Err(Error::shape(format!(
                "a constant {value:?} in a buffer of {}{:?}",
                buffer.dtype, buffer.sizes
            )))
        }
        _ => Ok(()),
    }
}

struct Checks<'a> {
    program: &'a Program,
    /// For each buffer, whether it has been written.
    written: Vec<bool>,
}

/// Returns an error of this kind if a condition does not hold.
fn require(holds: bool, kind: ErrorKind, why: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(kind, why())) }
}

fn require_len(what: &str, found: usize, wanted: usize) -> Result<()> {
    require(found == wanted, ErrorKind::Shape, || format!("{what} has {found} elements; expected {wanted}"))
}

fn require_count(what: &str, found: usize, wanted: usize) -> Result<()> {
    require(found == wanted, ErrorKind::Argument, || format!("there are {found} {what}; expected {wanted}"))
}

fn require_dtype(what: &str, found: DType, wanted: &[DType]) -> Result<()> {
    require(wanted.contains(&found), ErrorKind::DType, || {
        format!("{what} is {found}; expected one of {wanted:?}")
    })
}

/// Types of contractions and pooling; engines compute bf16 and f16 in f32.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];
/// Types of matrix products and convolutions.
const INTEGERS_AND_FLOATS: [DType; 5] = [DType::U8, DType::F32, DType::F64, DType::Bf16, DType::F16];
/// Types of cumulative sums and of the updates of a scatter-add.
const SUMMABLE: [DType; 6] = [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32, DType::I64];

impl Checks<'_> {
    fn node(&mut self, node: &KernelNode) -> Result<()> {
        for view in node.kernel.reads() {
            self.read(view)?;
        }
        for &id in &node.outputs {
            let Some(written) = self.written.get_mut(id.0 as usize) else {
                return Err(Error::argument(format!("it writes buffer %{}, which does not exist", id.0)));
            };
            if std::mem::replace(written, true) {
                return Err(Error::argument(format!("it writes buffer %{}, which is written already", id.0)));
            }
        }
        let outputs: Vec<&Buffer> = node.outputs.iter().map(|&id| self.program.buffer(id)).collect();
        kernel(&node.kernel, &outputs)
    }

    /// Checks that a view is valid and that its buffer has been written.
    fn read(&self, view: &View) -> Result<()> {
        validate_view(self.program, view)?;
        require(self.written[view.buffer.0 as usize], ErrorKind::Argument, || {
            format!("buffer %{} is read before anything is written to it", view.buffer.0)
        })
    }

    /// Adds the operation that computes `buffer` to an error.
    fn name_producer(&self, e: Error, buffer: BufferId) -> Error {
        match self.program.kernels.iter().find(|n| n.outputs.contains(&buffer)) {
            Some(node) => e.within(&node.origin.name).at(node.origin.site),
            None => e,
        }
    }
}

/// Checks that a kernel fits its operands, which are valid views, and its outputs.
fn kernel(kernel: &Kernel, outputs: &[&Buffer]) -> Result<()> {
    match kernel {
        Kernel::Map(body) => {
            map_body(body, outputs.len())?;
            outputs.iter().try_for_each(|b| require_len("an output", b.len(), elements(&body.sizes)))
        }
        Kernel::Reduce { body, reduced, kinds } => reduce(body, reduced, kinds, outputs),
        Kernel::Contract { kind, lhs, rhs, epilogue } => {
            let out = one(outputs)?;
            contract(kind, lhs, rhs, out)?;
            let Some(epilogue) = epilogue else { return Ok(()) };
            for view in &epilogue.operands {
                same_sizes("an epilogue's operand", &view.sizes, &out.sizes)?;
            }
            require_len("a row of the output", out.sizes.last().copied().unwrap_or(1), kind.out_columns())?;
            expr(&epilogue.expr, 1 + epilogue.operands.len(), out.sizes.len())?;
            require_count("results of an epilogue", epilogue.expr.outputs.len(), 1)
        }
        Kernel::Pool { kind, pool, inputs } => pool_kernel(*kind, pool, inputs, outputs),
        Kernel::Copy(src) => {
            let out = one(outputs)?;
            require_dtype("the output", out.dtype, &[src.dtype])?;
            require_len("the output", out.len(), src.len())
        }
        Kernel::Pad { src, low, high, interior } => {
            let out = one(outputs)?;
            require_dtype("the output", out.dtype, &[src.dtype])?;
            same_sizes("the output", &out.sizes, &padded_sizes(&src.sizes, low, high, interior)?)
        }
        Kernel::Concat { parts, axis } => concat(parts, *axis, one(outputs)?),
        Kernel::Gather { kind, gather, rows, indices } => {
            let out = one(outputs)?;
            gather.check()?;
            require_dtype("the indices", indices.dtype, &[DType::I64])?;
            dense("the indices", indices, gather.indices_len())?;
            require_dtype("the output", out.dtype, &[rows.dtype])?;
            match kind {
                GatherKind::Gather => {
                    dense("the tables", rows, gather.tables_len())?;
                    require_len("the output", out.len(), gather.rows_len())
                }
                GatherKind::ScatterAdd => {
                    require_dtype("the added rows", rows.dtype, &SUMMABLE)?;
                    operand("the added rows", rows, gather.rows_len())?;
                    require_len("the output", out.len(), gather.tables_len())
                }
                GatherKind::NonZero => {
                    // Engines read one index for each element that they write.
                    let is_list = gather.width == 1 && gather.indices_len() == gather.rows_len();
                    require(is_list, ErrorKind::Argument, || format!("{gather:?} is no list of integers"))?;
                    require_dtype("the divisor", rows.dtype, &[DType::I64])?;
                    dense("the divisor", rows, gather.rows_len())?;
                    require_len("the output", out.len(), gather.rows_len())
                }
            }
        }
        Kernel::Cumsum { cumsum, input } => {
            let out = one(outputs)?;
            cumsum.check()?;
            require_dtype("the input", input.dtype, &SUMMABLE)?;
            require_dtype("the output", out.dtype, &[input.dtype])?;
            operand("the input", input, cumsum.elements())?;
            require_len("the output", out.len(), cumsum.elements())
        }
        Kernel::Argsort { argsort, input } => {
            let out = one(outputs)?;
            argsort.check()?;
            require_dtype("the output", out.dtype, &[DType::I64])?;
            dense("the input", input, argsort.rows * argsort.len)?;
            require_len("the output", out.len(), argsort.rows * argsort.take)
        }
        Kernel::Nms { nms, input } => {
            let out = one(outputs)?;
            nms.check()?;
            require_dtype("the input", input.dtype, &[DType::Bool])?;
            require_dtype("the output", out.dtype, &[DType::Bool])?;
            dense("the input", input, nms.rows * nms.len * nms.len)?;
            require_len("the output", out.len(), nms.rows * nms.len)
        }
        Kernel::Random { .. } => require_dtype("the output", one(outputs)?.dtype, &[DType::F32, DType::F64]),
        Kernel::AllReduce { input, .. } => {
            let out = one(outputs)?;
            require_dtype("the input", input.dtype, &[DType::F32, DType::F64])?;
            require_dtype("the output", out.dtype, &[input.dtype])?;
            dense("the input", input, out.len())
        }
        Kernel::ReduceScatter { input, shards, .. } => {
            let out = one(outputs)?;
            require_dtype("the input", input.dtype, &[DType::F32, DType::F64])?;
            require_dtype("the output", out.dtype, &[input.dtype])?;
            dense("the input", input, input.len())?;
            shard(shards, out.len(), input.len())
        }
        Kernel::Shard { input, shards } => {
            let out = one(outputs)?;
            require_dtype("the output", out.dtype, &[input.dtype])?;
            dense("the input", input, input.len())?;
            shard(shards, out.len(), input.len())
        }
        Kernel::AllGather { inputs, shards } => {
            require_count("outputs", outputs.len(), inputs.len())?;
            inputs.iter().zip(outputs).try_for_each(|(input, out)| {
                require_dtype("an output", out.dtype, &[input.dtype])?;
                dense("an input", input, input.len())?;
                shard(shards, input.len(), out.len())
            })
        }
        Kernel::Attention { kind, attention, inputs } => attention_kernel(*kind, attention, inputs, outputs),
        Kernel::Custom { inputs, .. } => inputs.iter().try_for_each(|v| dense("an input", v, v.len())),
    }
}

/// Checks that a tensor of `len` elements is a shard of one of `elements`.
fn shard(shards: &Shards, len: usize, elements: usize) -> Result<()> {
    require(shards.divide(elements), ErrorKind::Shape, || {
        format!("{elements} elements cannot be divided into {} shards", shards.count)
    })?;
    require(shards.own.is_none_or(|own| own < shards.count), ErrorKind::Argument, || {
        format!("there is no shard {:?} of {}", shards.own, shards.count)
    })?;
    require_len("a shard", len, shards.len(elements))
}

fn one<'a>(outputs: &[&'a Buffer]) -> Result<&'a Buffer> {
    require_count("outputs", outputs.len(), 1)?;
    Ok(outputs[0])
}

fn same_sizes(what: &str, found: &[usize], wanted: &[usize]) -> Result<()> {
    require(found == wanted, ErrorKind::Shape, || format!("{what} has sizes {found:?}; expected {wanted:?}"))
}

/// Checks that an operand is dense and has `len` elements.
fn dense(what: &str, view: &View, len: usize) -> Result<()> {
    require(view.is_dense(), ErrorKind::Shape, || {
        format!("{what} is not dense: sizes {:?}, strides {:?}", view.sizes, view.strides)
    })?;
    require_len(what, view.len(), len)
}

/// Checks an operand that must be dense unless it is a float of 16 bits, which is converted
/// first.
fn operand(what: &str, view: &View, len: usize) -> Result<()> {
    if view.dtype.is_narrow_float() {
        return require_len(what, view.len(), len);
    }
    dense(what, view, len)
}

fn map_body(body: &MapBody, results: usize) -> Result<()> {
    element_count(&body.sizes)?;
    for view in &body.operands {
        same_sizes("an operand", &view.sizes, &body.sizes)?;
    }
    expr(&body.expr, body.operands.len(), body.sizes.len())?;
    require_count("results", body.expr.outputs.len(), results)
}

fn reduce(body: &MapBody, reduced: &[bool], kinds: &[ReduceKind], outputs: &[&Buffer]) -> Result<()> {
    map_body(body, kinds.len())?;
    require_count("entries in `reduced`", reduced.len(), body.sizes.len())?;
    let space = elements(&body.sizes);
    require(space <= MAX_REDUCED, ErrorKind::Memory, || {
        format!("a reduction over {space} elements, of sizes {:?}", body.sizes)
    })?;
    let count = |kind: &ReduceKind| if *kind == ReduceKind::Moments { 2 } else { 1 };
    require_count("outputs", outputs.len(), kinds.iter().map(count).sum())?;
    let kept = body.sizes.iter().zip(reduced).filter(|(_, r)| !**r).map(|(&n, _)| n);
    let kept = elements(&kept.collect::<Vec<_>>());
    outputs.iter().try_for_each(|b| require_len("an output", b.len(), kept))
}

fn contract(kind: &ContractKind, lhs: &View, rhs: &View, out: &Buffer) -> Result<()> {
    kind.check()?;
    match kind {
        ContractKind::MatMul(p) if p.batch == 1 && !p.lhs_transposed && !p.rhs_transposed => {
            require_dtype("the left operand", lhs.dtype, &INTEGERS_AND_FLOATS)?;
        }
        ContractKind::Conv2d(_) => require_dtype("the left operand", lhs.dtype, &INTEGERS_AND_FLOATS)?,
        _ => require_dtype("the left operand", lhs.dtype, &FLOATS)?,
    }
    require_dtype("the right operand", rhs.dtype, &[lhs.dtype])?;
    // Sums of bf16 may be kept in f32, which they are computed in.
    match lhs.dtype {
        DType::U8 => require_dtype("the output", out.dtype, &[DType::F32])?,
        DType::Bf16 => require_dtype("the output", out.dtype, &[DType::Bf16, DType::F32])?,
        _ => require_dtype("the output", out.dtype, &[lhs.dtype])?,
    }
    let [lhs_len, rhs_len, out_len] = kind.lens();
    operand("the left operand", lhs, lhs_len)?;
    operand("the right operand", rhs, rhs_len)?;
    require_len("the output", out.len(), out_len)
}

fn pool_kernel(kind: PoolKind, pool: &Pool, inputs: &[View], outputs: &[&Buffer]) -> Result<()> {
    pool.check()?;
    let (x, y) = (pool.in_len(), pool.out_len());
    // Elements of the first input, whether the positions of maxima are read, elements of the first
    // output, and whether the positions are written.
    let (read, reads_positions, written, writes_positions) = match kind {
        PoolKind::Max => (x, false, y, true),
        PoolKind::MaxGrad => (y, true, x, false),
        PoolKind::MaxPick => (x, true, y, false),
        PoolKind::Average => (x, false, y, false),
        PoolKind::AverageGrad => (y, false, x, false),
    };
    let positions = reads_positions || writes_positions;
    let window = pool.window[0].saturating_mul(pool.window[1]);
    require(!positions || window <= 256, ErrorKind::Argument, || {
        format!("a window of {:?} has more than 256 elements", pool.window)
    })?;
    require_count("inputs", inputs.len(), 1 + usize::from(reads_positions))?;
    require_count("outputs", outputs.len(), 1 + usize::from(writes_positions))?;
    require_dtype("the input", inputs[0].dtype, &FLOATS)?;
    operand("the input", &inputs[0], read)?;
    require_dtype("the output", outputs[0].dtype, &[inputs[0].dtype])?;
    require_len("the output", outputs[0].len(), written)?;
    if reads_positions {
        require_dtype("the positions", inputs[1].dtype, &[DType::U8])?;
        dense("the positions", &inputs[1], y)?;
    }
    if writes_positions {
        require_dtype("the positions", outputs[1].dtype, &[DType::U8])?;
        require_len("the positions", outputs[1].len(), y)?;
    }
    Ok(())
}

fn attention_kernel(
    kind: AttentionKind,
    attention: &Attention,
    inputs: &[View],
    outputs: &[&Buffer],
) -> Result<()> {
    attention.check()?;
    let [queries, keys, values] = [attention.queries_len(), attention.keys_len(), attention.values_len()];
    let (out, log_sums) = (attention.out_len(), attention.log_sums_len());
    let scores = elements(&attention.score_sizes());
    let seeds = 2 * attention.batch * attention.heads;
    // Names and lengths of the inputs whose type is that of the computation.
    let mut wanted = vec![("the queries", queries), ("the keys", keys), ("the values", values)];
    let (mut mask, mut log_sums_at) = (None, None);
    match kind {
        AttentionKind::DropoutFactors => {
            require(attention.dropout.is_some(), ErrorKind::Argument, || {
                "factors of dropout without dropout".into()
            })?;
            wanted = vec![("the seeds", seeds)];
        }
        _ => {
            if attention.mask {
                mask = Some(wanted.len());
                wanted.push(("the key mask", attention.batch * attention.keys));
            }
            if attention.bias {
                wanted.push(("the bias", scores));
            }
            if attention.dropout.is_some() {
                wanted.push(("the seeds", seeds));
            }
            if kind != AttentionKind::Forward {
                log_sums_at = Some(wanted.len() + 1);
                wanted.extend([
                    ("the result", out),
                    ("the sums of exponentials", log_sums),
                    ("the result's gradient", out),
                ]);
            }
        }
    }
    require_count("inputs", inputs.len(), wanted.len())?;
    let made: &[usize] = match kind {
        AttentionKind::Forward => &[out, log_sums],
        AttentionKind::Grad => &[queries, keys, values],
        AttentionKind::ScoreGrad | AttentionKind::DropoutFactors => &[scores],
    };
    require_count("outputs", outputs.len(), made.len())?;
    let dtype = match kind {
        AttentionKind::DropoutFactors => outputs[0].dtype,
        _ => inputs[0].dtype,
    };
    require_dtype("the input", dtype, &FLOATS)?;
    // What is not rounded to 16 bits: statistics and random numbers.
    let wide = dtype.widened();
    for (i, (view, (what, len))) in inputs.iter().zip(wanted).enumerate() {
        match what {
            "the bias" => {
                require_dtype(what, view.dtype, &[wide])?;
                same_sizes(what, &view.sizes, &attention.score_sizes())?;
            }
            "the seeds" => {
                require_dtype(what, view.dtype, &[wide])?;
                dense(what, view, len)?;
            }
            _ if Some(i) == mask => {
                require_dtype(what, view.dtype, &[DType::Bool])?;
                dense(what, view, len)?;
            }
            _ if Some(i) == log_sums_at => {
                require_dtype(what, view.dtype, &[wide])?;
                dense(what, view, len)?;
            }
            _ => {
                require_dtype(what, view.dtype, &[dtype])?;
                operand(what, view, len)?;
            }
        }
    }
    for (i, (buffer, &len)) in outputs.iter().zip(made).enumerate() {
        let statistics = kind == AttentionKind::Forward && i == 1;
        require_dtype("an output", buffer.dtype, &[if statistics { wide } else { dtype }])?;
        require_len("an output", buffer.len(), len)?;
    }
    Ok(())
}

fn concat(parts: &[View], axis: usize, out: &Buffer) -> Result<()> {
    require(axis < out.sizes.len() && !parts.is_empty(), ErrorKind::Argument, || {
        format!("{} parts along dimension {axis} of {:?}", parts.len(), out.sizes)
    })?;
    let mut along = 0usize;
    for part in parts {
        require_dtype("a part", part.dtype, &[out.dtype])?;
        let mut sizes = out.sizes.clone();
        sizes[axis] = part.sizes.get(axis).copied().unwrap_or(0);
        same_sizes("a part", &part.sizes, &sizes)?;
        along = along.saturating_add(sizes[axis]);
    }
    require_len("the joined dimension", along, out.sizes[axis])
}

/// Checks that each step of an expression uses only earlier ones, of the right classes.
fn expr(expr: &Expr, operands: usize, rank: usize) -> Result<()> {
    let wrong = |why: String| Err(Error::argument(format!("an expression {why}")));
    if expr.steps.len() > usize::from(u16::MAX) {
        return wrong(format!("of {} steps is too long", expr.steps.len()));
    }
    let mut classes = Vec::with_capacity(expr.steps.len());
    for (i, step) in expr.steps.iter().enumerate() {
        let class = |r: &Reg| match classes.get(usize::from(r.0)) {
            Some(class) => Ok(*class),
            None => Err(Error::argument(format!("step {i} of an expression uses step {}", r.0))),
        };
        classes.push(match step {
            Step::Operand { index, .. } if usize::from(*index) >= operands => {
                return wrong(format!("reads operand {index} of {operands}"));
            }
            Step::Index { axis, .. } if usize::from(*axis) >= rank => {
                return wrong(format!("indexes dimension {axis} of {rank}"));
            }
            Step::Operand { class, .. } | Step::Const(_, class) | Step::Index { class, .. } => *class,
            Step::Unary(_, x) => class(x)?,
            Step::Binary(op, a, b) => same_class(i, Some(*op), class(a)?, class(b)?)?,
            Step::Select(c, a, b) => class(c).and(same_class(i, None, class(a)?, class(b)?))?,
            Step::Cast(to, x) => class(x).map(|_| *to)?,
        });
    }
    match expr.outputs.iter().find(|r| usize::from(r.0) >= classes.len()) {
        Some(r) => wrong(format!("of {} steps outputs step {}", classes.len(), r.0)),
        None => Ok(()),
    }
}

fn same_class(step: usize, op: Option<Binary>, a: super::Class, b: super::Class) -> Result<super::Class> {
    if a == b {
        return Ok(a);
    }
    let op = op.map_or_else(|| "Select".to_string(), |op| format!("{op:?}"));
    Err(Error::dtype(format!("step {step} of an expression is {op} of a {a:?} and a {b:?}")))
}
