//! Kernels compiled for the CPU, and how they run on memory.

use super::all_reduce::Communicator;
use super::contract_kernel::ContractKernel;
use super::epilogue::CompiledEpilogue;
use super::exchange::Exchange;
use super::finite_checks::Checked;
use super::fuse::MAX_OPERANDS;
use super::kernel_selection::{self, ContractAttributes};
use super::memory::padded;
use super::overflow::Measured;
use super::panels::PackPanels;
use super::pipeline::Compilation;
use super::row_kernel::RowKernel;
use crate::kir::{CustomKernel, Kernel, KernelNode, MapBody, PoolKind, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorpack_kernels::{self as kernels, Bias, Block, FilterPacking, Isa, Operand, Operands, Team};
use tensorpack_tensor::{CounterRng, DType, Error, ErrorKind, HostTensor, Result};

/// A kernel with everything it needs to run.
#[derive(Debug)]
pub(super) enum CompiledKernel {
    Map(kernels::Map),
    Reduce(kernels::Reduce),
    Contract {
        kernel: ContractKernel,
        epilogue: CompiledEpilogue,
    },
    Pool {
        kind: PoolKind,
        pool: kernels::Pool,
        dtype: DType,
    },
    Copy(kernels::Copy),
    PackPanels(PackPanels),
    Pad(kernels::Pad),
    Rows(RowKernel),
    Random {
        kernel: kernels::Random,
        stream: String,
        first: u64,
    },
    Attention {
        attention: kernels::Attention,
        dtype: DType,
    },
    AllReduce {
        dtype: DType,
        len: usize,
        key: String,
    },
    /// The two halves of all-reduce `index` of an [`Exchange`].
    AllReduceStart {
        index: usize,
        key: String,
    },
    AllReduceDone {
        index: usize,
    },
    /// All-gather `index` of an [`Exchange`].
    AllGather {
        index: usize,
    },
    Custom {
        kernel: Arc<dyn CustomKernel>,
        inputs: Vec<(DType, Vec<usize>)>,
        outputs: Vec<(DType, Vec<usize>)>,
    },
}

impl CompiledKernel {
    /// Returns whether the result depends on other towers or processes.
    pub(super) fn is_collective(&self) -> bool {
        use CompiledKernel::{AllGather, AllReduce, AllReduceDone};
        matches!(self, AllReduce { .. } | AllReduceDone { .. } | AllGather { .. })
    }
}

/// The memory and state that a step runs on.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    pub(super) reads: &'a [*const u8],
    pub(super) writes: &'a [*mut u8],
    pub(super) outputs: &'a [(DType, usize)],
    /// The checked elements of each output.
    pub(super) checked: &'a [Vec<Checked>],
    /// Records the extremes of checked elements, if they are needed.
    pub(super) measured: Option<&'a [Measured]>,
    pub(super) shared: *mut u8,
    /// Whether the shared memory has the result of the first phase already.
    pub(super) is_packed: bool,
    /// A block of scratch memory for each member of the team.
    pub(super) scratch: &'a [*mut u8],
    pub(super) scratch_bytes: usize,
    /// Cleared when a checked result is not finite.
    pub(super) finite: &'a AtomicBool,
    pub(super) isa: Isa,
    pub(super) seed: u64,
    pub(super) draw: u64,
    pub(super) participant: Participant<'a>,
}

/// A tower as a member of its communicator.
#[derive(Clone, Copy)]
pub(super) struct Participant<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) tower: usize,
    /// The all-reduces of the program, if there are other processes.
    pub(super) exchange: Option<&'a Exchange>,
}

/// The error of half an all-reduce in a program without exchanges.
fn no_exchange() -> Error {
    Error::new(ErrorKind::Engine, "this program was not compiled for several processes")
}

// SAFETY: the pointers are those that `TowerRun::resolve` has computed for this run: into memory
// that the engine keeps locked, or into feeds and constants, which outlive it. Each chunk writes a
// part that no other chunk touches, and everything else in here is `Sync` by itself.
unsafe impl Sync for Memory<'_> {}

/// Returns the operand of a kernel that reads a view.
pub(super) fn operand(view: &View) -> Operand {
    Operand { dtype: view.dtype, strides: view.strides.clone() }
}

impl CompiledKernel {
    /// Prepares a kernel. Returns an error, with the node it was lowered from, if its sizes are too
    /// large for the loops that run it.
    pub(super) fn new(compilation: &Compilation, node: &KernelNode) -> Result<CompiledKernel> {
        let fail = |e: Error| e.within(&node.origin.name).at(node.origin.site);
        CompiledKernel::prepared(compilation, node).map_err(fail)
    }

    fn prepared(compilation: &Compilation, node: &KernelNode) -> Result<CompiledKernel> {
        let program = &compilation.program;
        let dtypes: Vec<DType> = node.outputs.iter().map(|&b| program.buffer(b).dtype).collect();
        let form = |v: &View| (v.dtype, v.sizes.clone());
        Ok(match &node.kernel {
            Kernel::Map(body) => CompiledKernel::map(body, dtypes),
            Kernel::Reduce { body, reduced, kinds } => CompiledKernel::Reduce(kernels::Reduce::new(
                &body.sizes,
                reduced,
                body.operands.iter().map(operand).collect(),
                body.expr.clone(),
                kinds.clone(),
                dtypes,
            )),
            Kernel::Contract { kind, lhs, rhs, epilogue } => {
                let out = program.buffer(node.outputs[0]);
                let own = View::dense(node.outputs[0], out.dtype, &out.sizes);
                let attributes = ContractAttributes {
                    rhs_panels: compilation.panels.contains(&rhs.buffer),
                    exact: compilation.exact_convolutions,
                    threads: compilation.threads,
                    bf16: compilation.bf16,
                };
                let kernel = kernel_selection::contraction(kind, [lhs.dtype, out.dtype], attributes)?;
                kernel.check()?;
                if kernel.sums_apart() && epilogue.is_none() {
                    return Err(Error::dtype("a contraction of bf16 has sums in f32, which nothing rounds"));
                }
                let epilogue = CompiledEpilogue::new(epilogue.as_ref(), &kernel, &own);
                CompiledKernel::Contract { kernel, epilogue }
            }
            Kernel::Pool { kind, pool, inputs } => {
                let pool = kernel_selection::pool(pool);
                pool.check()?;
                CompiledKernel::Pool { kind: *kind, pool, dtype: inputs[0].dtype }
            }
            Kernel::Copy(src) if compilation.panels.contains(&node.outputs[0]) => {
                CompiledKernel::PackPanels(PackPanels::new(src))
            }
            Kernel::Copy(src) => CompiledKernel::copy(src),
            Kernel::Pad { src, low, high, interior } => CompiledKernel::Pad(kernels::Pad::new(
                &src.sizes,
                src.dtype.size(),
                &src.strides,
                low,
                high,
                interior,
            )),
            Kernel::Concat { parts, axis } => CompiledKernel::Rows(RowKernel::concat(parts, *axis)),
            Kernel::Gather { kind, gather, rows, .. } => {
                let gather = kernel_selection::gather(gather);
                gather.check()?;
                CompiledKernel::Rows(RowKernel::Gather { kind: *kind, gather, dtype: rows.dtype })
            }
            Kernel::Cumsum { cumsum, input } => {
                let cumsum = kernel_selection::cumsum(cumsum);
                cumsum.check()?;
                CompiledKernel::Rows(RowKernel::Cumsum { cumsum, dtype: input.dtype })
            }
            Kernel::Argsort { argsort, input } => {
                let argsort = kernel_selection::argsort(argsort);
                argsort.check()?;
                CompiledKernel::Rows(RowKernel::Argsort { argsort, dtype: input.dtype })
            }
            Kernel::Nms { nms, .. } => {
                let nms = kernel_selection::nms(nms);
                nms.check()?;
                CompiledKernel::Rows(RowKernel::Nms(nms))
            }
            Kernel::Random { stream, first, .. } => {
                let out = program.buffer(node.outputs[0]);
                let kernel = kernels::Random::new(out.len(), out.dtype);
                CompiledKernel::Random { kernel, stream: stream.clone(), first: *first as u64 }
            }
            Kernel::Attention { kind, attention, inputs } => {
                let attention = kernel_selection::attention(*kind, attention, inputs);
                attention.check()?;
                CompiledKernel::Attention { attention, dtype: dtypes[0] }
            }
            Kernel::AllReduce { key, input, .. } => {
                CompiledKernel::AllReduce { dtype: input.dtype, len: input.len(), key: key.clone() }
            }
            // Split into its halves, like an all-reduce.
            Kernel::ReduceScatter { key, input, .. } => {
                CompiledKernel::AllReduce { dtype: input.dtype, len: input.len(), key: key.clone() }
            }
            Kernel::AllGather { .. } => {
                let is_gather = |n: &&KernelNode| matches!(n.kernel, Kernel::AllGather { .. });
                let gathers = program.kernels.iter().filter(is_gather);
                let index = gathers.take_while(|n| n.outputs != node.outputs).count();
                CompiledKernel::AllGather { index }
            }
            Kernel::Shard { .. } => {
                return Err(Error::new(ErrorKind::Unsupported, "a shard of an unknown index"));
            }
            Kernel::Custom { kernel, inputs } => CompiledKernel::Custom {
                kernel: kernel.clone(),
                inputs: inputs.iter().map(form).collect(),
                outputs: node
                    .outputs
                    .iter()
                    .map(|&b| (program.buffer(b).dtype, program.buffer(b).sizes.clone()))
                    .collect(),
            },
        })
    }

    pub(super) fn map(body: &MapBody, outputs: Vec<DType>) -> CompiledKernel {
        let operands = body.operands.iter().map(operand).collect();
        CompiledKernel::Map(kernels::Map::new(&body.sizes, operands, body.expr.clone(), outputs))
    }

    pub(super) fn copy(src: &View) -> CompiledKernel {
        let dense = View::dense(src.buffer, src.dtype, &src.sizes);
        CompiledKernel::Copy(kernels::Copy::new(&src.sizes, src.dtype.size(), &src.strides, &dense.strides))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            CompiledKernel::Map(_) => "map",
            CompiledKernel::Reduce(_) => "reduce",
            CompiledKernel::Contract { .. } => "contract",
            CompiledKernel::Pool { .. } => "pool",
            CompiledKernel::Copy(_) | CompiledKernel::PackPanels(_) => "copy",
            CompiledKernel::Pad(_) => "pad",
            CompiledKernel::Rows(k) => k.name(),
            CompiledKernel::Random { .. } => "random",
            CompiledKernel::Attention { .. } => "attention",
            CompiledKernel::AllReduce { .. } => "all-reduce",
            CompiledKernel::AllReduceStart { .. } => "all-reduce-start",
            CompiledKernel::AllReduceDone { .. } => "all-reduce-done",
            CompiledKernel::AllGather { .. } => "all-gather",
            CompiledKernel::Custom { .. } => "custom",
        }
    }

    /// Returns a suffix for the kernel's line in the plan's text.
    pub(super) fn summary(&self) -> &'static str {
        match self {
            CompiledKernel::Contract {
                epilogue: CompiledEpilogue::Bias { .. } | CompiledEpilogue::Map(_),
                ..
            } => " with epilogue",
            CompiledKernel::PackPanels(_) => " in panels",
            _ => "",
        }
    }

    pub(super) fn flops(&self) -> f64 {
        match self {
            CompiledKernel::Contract { kernel, .. } => kernel.flops(),
            CompiledKernel::Attention { attention, .. } => attention.flops(),
            _ => 0.0,
        }
    }

    pub(super) fn shared_bytes(&self) -> usize {
        match self {
            CompiledKernel::Reduce(k) => k.shared_bytes(),
            CompiledKernel::Contract { kernel, .. } => kernel.shared_bytes(),
            CompiledKernel::Attention { attention, dtype } => attention.shared_bytes(*dtype),
            _ => 0,
        }
    }

    /// Returns how the first phase of a convolution packs its filter.
    pub(super) fn packing(&self) -> Option<FilterPacking> {
        match self {
            CompiledKernel::Contract { kernel, .. } => kernel.packing(),
            _ => None,
        }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        match self {
            CompiledKernel::Map(k) => k.scratch_bytes(),
            CompiledKernel::Reduce(k) => k.scratch_bytes(),
            CompiledKernel::Contract { kernel, epilogue, .. } => {
                padded(kernel.scratch_bytes()) + epilogue.scratch_bytes()
            }
            CompiledKernel::Rows(k) => k.scratch_bytes(),
            CompiledKernel::Attention { attention, dtype } => attention.scratch_bytes(*dtype),
            _ => 0,
        }
    }

    /// Runs on the whole team.
    ///
    /// # Safety
    /// The memory must be what this kernel was planned with: every pointer valid for the planned
    /// number of elements and aligned for their type, with no other access during the run, scratch
    /// memory for each member of the team, and an instruction set of this CPU.
    pub(super) unsafe fn run(&self, team: &mut Team, m: &Memory<'_>) -> Result<()> {
        let isa = m.isa;
        let read = |i: usize| m.read(i);
        let write = |i: usize| m.write(i);
        match self {
            CompiledKernel::Map(k) => team.run(k.chunks(), &|chunk, member| {
                // SAFETY: as promised by the caller; chunks write apart from each other.
                unsafe {
                    k.run(isa, chunk, m.reads(), m.writes(), m.scratch(member));
                    m.check(k.chunk_range(chunk));
                }
            }),
            CompiledKernel::Reduce(k) => {
                for phase in 0..k.phases() {
                    team.run(k.chunks(phase), &|chunk, member| {
                        // SAFETY: as above; phases follow one another.
                        unsafe {
                            k.run(isa, phase, chunk, m.reads(), m.writes(), m.shared(), m.scratch(member))
                        }
                    });
                }
                // SAFETY: the outputs are complete; they are few.
                unsafe { m.check_all() };
            }
            CompiledKernel::Contract { kernel, epilogue } => {
                let cols = kernel.columns();
                for phase in usize::from(m.is_packed)..kernel.phases() {
                    team.run(kernel.chunks(phase), &|chunk, member| {
                        let (own, rest) = m.scratch(member).split_at_mut(padded(kernel.scratch_bytes()));
                        let mut finish = |block: Block| {
                            if let CompiledEpilogue::Map(map) = epilogue {
                                let mut apart = [std::ptr::null(); 1 + MAX_OPERANDS];
                                let reads = match kernel.sums_apart() {
                                    true => m.epilogue_reads_apart(&mut apart),
                                    false => m.epilogue_reads(),
                                };
                                // SAFETY: the block is final and this chunk's own; operand 0 is the
                                // result itself, or its sums.
                                unsafe { map.run_block(isa, &block, reads, m.writes(), rest) };
                            }
                            // SAFETY: as above.
                            unsafe { m.check_block(&block, cols) };
                        };
                        // SAFETY: as promised by the caller.
                        unsafe { kernel.run(m, epilogue, (phase, chunk), own, &mut finish) }
                    });
                }
            }
            CompiledKernel::Pool { kind, pool, dtype } => {
                let chunks = match kind {
                    PoolKind::MaxGrad | PoolKind::AverageGrad => pool.in_chunks(),
                    _ => pool.chunks(),
                };
                team.run(chunks, &|chunk, _| {
                    // SAFETY: as promised by the caller.
                    unsafe {
                        match kind {
                            PoolKind::Max => pool.max(isa, *dtype, chunk, read(0), write(0), write(1)),
                            PoolKind::MaxGrad => {
                                pool.max_grad(isa, *dtype, chunk, read(0), read(1), write(0))
                            }
                            PoolKind::MaxPick => {
                                pool.max_pick(isa, *dtype, chunk, read(0), read(1), write(0))
                            }
                            PoolKind::Average => pool.average(isa, *dtype, chunk, read(0), write(0)),
                            PoolKind::AverageGrad => pool.average_grad(isa, *dtype, chunk, read(0), write(0)),
                        }
                    }
                });
                // SAFETY: the outputs are complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::Copy(k) => {
                // SAFETY: as promised by the caller.
                team.run(k.chunks(), &|chunk, _| unsafe { k.run(isa, chunk, read(0), write(0)) });
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::PackPanels(k) => {
                // SAFETY: as promised by the caller; chunks write apart from each other.
                team.run(k.chunks(), &|chunk, _| unsafe { k.run(isa, chunk, read(0), write(0)) });
            }
            CompiledKernel::Pad(k) => {
                // SAFETY: as promised by the caller.
                team.run(k.chunks(), &|chunk, _| unsafe { k.run(isa, chunk, read(0), write(0)) });
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::Rows(k) => {
                // SAFETY: as promised by the caller.
                unsafe { k.run(team, m)? };
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::Random { kernel, stream, first } => {
                let rng = CounterRng::new(m.seed, stream);
                // SAFETY: as promised by the caller.
                team.run(kernel.chunks(), &|chunk, _| unsafe {
                    kernel.run(isa, chunk, rng, m.draw, *first, write(0))
                });
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::Attention { attention, dtype } => {
                for phase in 0..attention.phases() {
                    team.run(attention.chunks(phase), &|chunk, member| {
                        let scratch = m.scratch(member);
                        // SAFETY: as promised by the caller; phases follow one another, and
                        // `kir::validate` has checked the sizes of operands and results.
                        unsafe {
                            let (reads, writes, shared) = (m.reads(), m.writes(), m.shared());
                            attention.run(isa, *dtype, phase, chunk, reads, writes, shared, scratch);
                        }
                    });
                }
                // SAFETY: the outputs are complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::AllReduce { dtype, len, key } => {
                let Participant { communicator, tower, .. } = m.participant;
                // SAFETY: as promised by the caller; `check_all_reduces` in `engine.rs` has checked
                // that this all-reduce has the same type and size in all towers.
                unsafe { communicator.all_reduce(tower, key, *dtype, read(0), write(0), *len)? };
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::AllReduceStart { index, key } => {
                let Participant { communicator, tower, exchange } = m.participant;
                // SAFETY: as for `AllReduce`.
                unsafe {
                    exchange.ok_or_else(no_exchange)?.start(*index, communicator, tower, key, read(0))?
                };
            }
            CompiledKernel::AllReduceDone { index } => {
                // SAFETY: as promised by the caller: the output has the length of the all-reduce.
                unsafe { m.participant.exchange.ok_or_else(no_exchange)?.done(*index, write(0))? };
                // SAFETY: the output is complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::AllGather { index } => {
                let exchange = m.participant.exchange.ok_or_else(no_exchange)?;
                // SAFETY: as promised by the caller: `kir::validate` has checked the lengths of all
                // inputs and outputs.
                unsafe { exchange.gather(*index, m.reads, m.writes)? };
                // SAFETY: the outputs are complete.
                unsafe { m.check_all() };
            }
            CompiledKernel::Custom { kernel, inputs, outputs } => {
                let inputs = inputs
                    .iter()
                    .enumerate()
                    .map(|(i, (dtype, sizes))| {
                        let mut t = HostTensor::zeros(*dtype, sizes.as_slice())?;
                        // SAFETY: `kir::validate` has checked that the input is dense, and `t` has
                        // its sizes.
                        let bytes = unsafe { std::slice::from_raw_parts(read(i), t.len() * dtype.size()) };
                        t.copy_from_bytes(bytes).map(|()| t)
                    })
                    .collect::<Result<Vec<HostTensor>>>()?;
                let mut made = outputs
                    .iter()
                    .map(|(dtype, sizes)| HostTensor::zeros(*dtype, sizes.as_slice()))
                    .collect::<Result<Vec<HostTensor>>>()?;
                kernel.run(&inputs, &mut made)?;
                for (i, (t, (dtype, sizes))) in made.iter().zip(outputs).enumerate() {
                    if (t.dtype(), t.sizes()) != (*dtype, sizes.as_slice()) {
                        return Err(Error::shape(format!(
                            "the kernel returned {}{:?}, but declared {dtype}{sizes:?}",
                            t.dtype(),
                            t.sizes()
                        )));
                    }
                    // SAFETY: type and sizes are the output's, as just checked.
                    unsafe {
                        std::ptr::copy_nonoverlapping(t.as_bytes().as_ptr(), write(i), t.as_bytes().len())
                    };
                }
                // SAFETY: the outputs are complete.
                unsafe { m.check_all() };
            }
        }
        Ok(())
    }
}

// Closures that run on several threads capture a `&Memory`, which is `Sync`, and access its
// pointers through these methods. A field named in a closure would be captured on its own, and a
// raw pointer is not `Sync`.
impl Memory<'_> {
    pub(super) fn reads(&self) -> &[*const u8] {
        self.reads
    }

    fn writes(&self) -> &[*mut u8] {
        self.writes
    }

    pub(super) fn read(&self, i: usize) -> *const u8 {
        self.reads[i]
    }

    pub(super) fn write(&self, i: usize) -> *mut u8 {
        self.writes[i]
    }

    fn shared(&self) -> *mut u8 {
        self.shared
    }

    /// Returns the operands of a contraction.
    pub(super) fn operands<T, S>(&self, epilogue: &CompiledEpilogue) -> Operands<T, S> {
        let bias = match epilogue {
            CompiledEpilogue::Bias { add: true, relu } => {
                Bias { add: self.epilogue_reads()[1].cast(), relu: *relu }
            }
            CompiledEpilogue::Bias { add: false, relu } => Bias { relu: *relu, ..Bias::NONE },
            _ => Bias::NONE,
        };
        let (lhs, rhs, out) = (self.read(0).cast(), self.read(1).cast(), self.write(0).cast());
        Operands { lhs, rhs, out, shared: self.shared, bias }
    }

    /// Returns the scratch memory of one member.
    #[expect(clippy::mut_from_ref, reason = "each member of the team takes its own block")]
    pub(super) fn scratch(&self, member: usize) -> &mut [u8] {
        // SAFETY: `TowerMemory::make_room` allocated a block of this size for each member of the
        // team; a member runs one chunk at a time, and a chunk asks once.
        unsafe { std::slice::from_raw_parts_mut(self.scratch[member], self.scratch_bytes) }
    }

    /// Returns the operands of an epilogue: the result itself, then the operands after lhs and rhs.
    fn epilogue_reads(&self) -> &[*const u8] {
        &self.reads[2..]
    }

    /// Returns the operands of an epilogue whose sums are at the start of the shared memory.
    fn epilogue_reads_apart<'a>(&self, reads: &'a mut [*const u8; 1 + MAX_OPERANDS]) -> &'a [*const u8] {
        let own = self.epilogue_reads();
        reads[0] = self.shared.cast_const();
        reads[1..own.len()].copy_from_slice(&own[1..]);
        &reads[..own.len()]
    }

    /// Checks the elements of outputs in a range that a chunk has just written, while they are in
    /// cache.
    ///
    /// # Safety
    /// Elements of the outputs in this range must be readable, and no other thread may write them.
    unsafe fn check(&self, elements: std::ops::Range<usize>) {
        for (i, checked) in self.checked.iter().enumerate() {
            let dtype = self.outputs[i].0;
            let first = checked.partition_point(|c| c.elements.end <= elements.start);
            for c in checked[first..].iter().take_while(|c| c.elements.start < elements.end) {
                let from = c.elements.start.max(elements.start);
                let len = c.elements.end.min(elements.end) - from;
                // SAFETY: checked elements are inside the output (`FiniteChecks`), and the caller
                // guarantees those of the range.
                let extremes = unsafe {
                    kernels::extremes(self.isa, dtype, self.writes[i].add(from * dtype.size()), len)
                };
                if c.finite && !extremes.are_finite(dtype) {
                    self.finite.store(false, Ordering::Relaxed);
                }
                if let Some(measured) = self.measured {
                    measured[c.slot].add(extremes);
                }
            }
        }
    }

    /// Checks all elements that are to be checked.
    ///
    /// # Safety
    /// The outputs must be complete.
    unsafe fn check_all(&self) {
        let most = self.outputs.iter().map(|(_, n)| *n).max().unwrap_or(0);
        // SAFETY: guaranteed by the caller.
        unsafe { self.check(0..most) }
    }

    /// Checks the elements of a block of an output matrix with `cols` columns.
    ///
    /// # Safety
    /// The block must be inside the first output, complete, and no other thread may write it.
    unsafe fn check_block(&self, block: &Block, cols: usize) {
        if self.checked.first().is_none_or(Vec::is_empty) {
            return;
        }
        if block.cols == (0..cols) {
            // SAFETY: whole rows are contiguous.
            return unsafe { self.check(block.rows.start * cols..block.rows.end * cols) };
        }
        for row in block.rows.clone() {
            // SAFETY: the block is inside the output.
            unsafe { self.check(row * cols + block.cols.start..row * cols + block.cols.end) };
        }
    }
}
