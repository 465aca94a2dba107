//! Prints a whole program as a StableHLO module: arguments, kernels, results.

use super::contract::{self, ProductPrecision};
use super::fused_attention::FusedAttention;
use super::gather::{self, BadIndex};
use super::random::{self, Key, Offset};
use super::spmd::{Part, SpmdProgram};
use super::stablehlo::{Element, Materialize, Value, Writer, tensor_type};
use super::steps_loop::StepsPerLaunch;
use super::{attention, collectives, cumsum, expr, narrow, nms, pool, reduce, sort, view};
use crate::graph::split_tower;
use crate::kir::{
    self, BufferId, BufferKind, ContractKind, GatherKind, Kernel, KernelNode, OnOverflow, Origin, Program,
    Recomputed, View,
};
use crate::runtime::overflow_rules;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, bf16, f16};

/// Larger constants are arguments that stay on the device, instead of text in the module.
const INLINE_BYTES: usize = 256;

/// The largest number of values that are checked by one reduction. XLA does not fuse operations into
/// kernels with more than about a hundred operands.
const CHECKS_PER_REDUCTION: usize = 48;

/// The purpose of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Fetches values and updates variables.
    Run,
    /// Runs several steps, each of which fetches values and updates variables.
    RunSteps(StepsPerLaunch),
    /// Returns which results are finite, and updates nothing.
    FindNonFinite,
}

/// An argument of a module.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// A variable's value.
    Variable(usize),
    /// Whether all earlier runs succeeded; if not, this one changes nothing.
    PriorStepsOk,
    /// A variable's value in the snapshot of a fork.
    Snapshot(usize),
    /// Whether the part of a tower succeeded, in a run that is split.
    TowerOk(usize),
    /// A feed, by index.
    Feed(usize),
    /// A value that a tower passes on, in a run that is split; by index.
    Passed(usize),
    /// A feed of a step of a launch: the step, and the index of the feed. A launch of fewer steps is
    /// given the feeds of its last step for those that it does not run.
    StepFeed(usize, usize),
    /// The number of steps of this launch as an i64.
    Steps,
    /// The number of steps in a row that may be skipped, as an i64; 0 if the first failure ends the
    /// run.
    SkipLimit,
    /// The number of steps in a row that were skipped before this launch, as an i64.
    SkippedBefore,
    /// A constant.
    Constant(HostTensor),
    /// The bits of the session's seed as an i64.
    Seed,
    /// The bits of the run's draw number as an i64.
    Draw,
    /// The offset of the tower's elements in a random stream.
    RandomOffset(String),
    /// An i64 zero that the compiler cannot fold; see [`Materialize::Branch`].
    Zero,
}

/// A gather or scatter whose indices are checked, or a division whose divisor is.
#[derive(Clone, Debug)]
pub(super) struct CheckedGather {
    pub(super) origin: Origin,
    pub(super) kind: GatherKind,
    pub(super) rows: usize,
}

/// Where a fetched value is in the results of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchPlace {
    /// The result with this index after the updated variables.
    Result(usize),
    /// A scalar of this dtype, at this index of the report: see [`scalar_bits`].
    Report(usize, DType),
}

/// A program as text, with its arguments and results.
///
/// The results are the next values of variables, the fetches that are no scalars, and the report:
/// i64s, of which the first is 1 if all checked values are finite, followed by the position (or
/// `i64::MAX`) and the value of the first bad index of each gather, and then by the scalar fetches.
/// One small download has all of them. If there are updates, [`Argument::PriorStepsOk`] of the next
/// run follows; the part of a tower in a run that is split has instead the values that it passes on,
/// and whether it succeeded. If there are random numbers, the [`Argument::Draw`] of the next run is
/// last. A module that searches for non-finite results returns only a boolean for each result, and the
/// report. In a module of several steps, fetches and report have one more dimension, the step.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) text: String,
    pub(super) arguments: Vec<Argument>,
    /// The updated variables, in the order of the results.
    pub(super) updated: Vec<usize>,
    /// Where each fetch is.
    pub(super) fetches: Vec<FetchPlace>,
    /// The index of the report among the results after the updated variables: the number of fetches
    /// that are no scalars.
    pub(super) report: usize,
    /// Whether the last result is the [`Argument::Draw`] of the next run.
    pub(super) draws: bool,
    pub(super) gathers: Vec<CheckedGather>,
    /// Whether attention is computed by cuDNN's kernels.
    pub(super) fused_attention: bool,
    /// Each result that a search tests, with its origin in the first tower.
    pub(super) tested: Vec<(BufferId, Origin)>,
}

/// What modules for a device may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModuleOptions {
    /// Whether f32 products are computed in full precision.
    pub(super) full_precision: bool,
    /// Whether the compiler keeps optimization barriers until operations are fused.
    pub(super) barriers: bool,
    /// Whether the device has cuDNN's kernels for attention.
    pub(super) fused_attention: bool,
}

/// Prints a program as a module, which runs on one device per tower.
pub(super) fn module(spmd: &SpmdProgram, purpose: Purpose, options: ModuleOptions) -> Result<Module> {
    let mut cx = ModuleWriter::new(spmd, options);
    cx.bind_arguments(purpose);
    if let Purpose::RunSteps(steps) = purpose {
        return cx.run_steps(steps);
    }
    cx.kernels()?;
    Ok(match purpose {
        Purpose::FindNonFinite => cx.find_non_finite(),
        _ => cx.run(),
    })
}

pub(super) struct ModuleWriter<'a> {
    precision: ProductPrecision,
    pub(super) spmd: &'a SpmdProgram,
    pub(super) program: &'a Program,
    pub(super) w: Writer,
    pub(super) values: HashMap<BufferId, Value>,
    pub(super) arguments: Vec<(Argument, Value)>,
    /// The current value of each variable that is an argument.
    pub(super) variables: HashMap<usize, Value>,
    /// The value of each feed that the program reads.
    pub(super) feeds: Vec<(usize, Value)>,
    pub(super) key: Option<Key>,
    random_offsets: HashMap<String, Value>,
    pub(super) prior_steps_ok: Option<Value>,
    /// Whether the parts of towers succeeded, in a run that is split.
    towers_ok: Vec<Value>,
    /// The draw number of the run as an i64, if the program draws random numbers.
    pub(super) draw: Option<Value>,
    materialize: Materialize,
    barriers: bool,
    fused_attention: FusedAttention,
    /// What is known of the kernel that is printed, if it computes results again.
    recomputing: Option<Recomputed>,
    /// The operands of kernels that compute results again, by group and name, behind a barrier.
    behind_barrier: HashMap<(u32, String), Value>,
    pub(super) bad: Vec<(CheckedGather, BadIndex)>,
}

/// What a step computes.
pub(super) struct StepResults {
    /// Whether its checks succeeded on all replicas.
    pub(super) ok: Value,
    /// Whether all indices were in range, on all replicas.
    pub(super) indices_ok: Value,
    /// The next values of the updated variables, and whether each must be finite.
    pub(super) next: Vec<(Value, bool)>,
    /// Where each fetch is.
    pub(super) fetches: Vec<FetchPlace>,
    /// The fetches that are no scalars.
    pub(super) tensors: Vec<Value>,
    /// Whether the checks of this tower succeeded, for the report.
    pub(super) reported: Value,
    /// The fetches that are scalars, as bits.
    pub(super) scalars: Vec<Value>,
}

impl<'a> ModuleWriter<'a> {
    fn new(spmd: &'a SpmdProgram, options: ModuleOptions) -> ModuleWriter<'a> {
        ModuleWriter {
            precision: match options.full_precision {
                true => ProductPrecision::Full,
                false => ProductPrecision::Fast,
            },
            spmd,
            program: &spmd.program,
            w: Writer::default(),
            values: HashMap::new(),
            arguments: Vec::new(),
            variables: HashMap::new(),
            feeds: Vec::new(),
            key: None,
            random_offsets: HashMap::new(),
            prior_steps_ok: None,
            towers_ok: Vec::new(),
            draw: None,
            materialize: Materialize::Barrier,
            barriers: options.barriers,
            fused_attention: FusedAttention { is_available: options.fused_attention, is_used: false },
            recomputing: None,
            behind_barrier: HashMap::new(),
            bad: Vec::new(),
        }
    }

    pub(super) fn argument(&mut self, argument: Argument, dtype: DType, sizes: &[usize]) -> Value {
        let value = self.w.argument(dtype, sizes);
        match argument {
            Argument::Variable(v) => drop(self.variables.insert(v, value.clone())),
            Argument::Feed(f) => self.feeds.push((f, value.clone())),
            _ => {}
        }
        self.arguments.push((argument, value.clone()));
        value
    }

    /// Declares the arguments: variables that are read or updated, feeds that are read, constants,
    /// the random key.
    fn bind_arguments(&mut self, purpose: Purpose) {
        let program = self.program;
        let mut used: HashSet<BufferId> =
            program.kernels.iter().flat_map(|n| n.kernel.reads()).map(|v| v.buffer).collect();
        let runs = purpose != Purpose::FindNonFinite;
        if runs {
            used.extend(program.fetches.iter().chain(&program.costs).map(|v| v.buffer));
            used.extend(program.updates.iter().map(|u| u.value.buffer));
        }
        if let Part::Tower { passes } = &self.spmd.part {
            used.extend(passes.iter().map(|v| v.buffer));
        }
        let first_passed = match self.spmd.part {
            Part::Joint { first_passed, .. } => first_passed,
            _ => usize::MAX,
        };
        let written = |v: usize| program.updates.iter().any(|u| u.variable == v);
        for (i, buffer) in program.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            let value = match &buffer.kind {
                BufferKind::Variable(v) if used.contains(&id) || written(*v) => {
                    self.argument(Argument::Variable(*v), buffer.dtype, &buffer.sizes)
                }
                BufferKind::Snapshot(v) if used.contains(&id) => {
                    self.argument(Argument::Snapshot(*v), buffer.dtype, &buffer.sizes)
                }
                BufferKind::Feed(f) if used.contains(&id) => match (purpose, f.checked_sub(first_passed)) {
                    (_, Some(passed)) => self.argument(Argument::Passed(passed), buffer.dtype, &buffer.sizes),
                    (Purpose::RunSteps(steps), None) => {
                        self.step_feeds(*f, steps.most, buffer.dtype, &buffer.sizes)
                    }
                    _ => self.argument(Argument::Feed(*f), buffer.dtype, &buffer.sizes),
                },
                BufferKind::Constant(t) if used.contains(&id) && buffer.bytes() > INLINE_BYTES => {
                    self.argument(Argument::Constant(t.clone()), buffer.dtype, &buffer.sizes)
                }
                _ => continue,
            };
            self.values.insert(id, value);
        }
        // If the check fails the old value is kept, so variables that no kernel reads are
        // arguments, too.
        for u in &program.updates {
            if !program.reads(u.variable) && runs {
                self.argument(Argument::Variable(u.variable), u.value.dtype, &u.value.sizes);
            }
        }
        if runs && !program.updates.is_empty() {
            self.prior_steps_ok = Some(self.argument(Argument::PriorStepsOk, DType::Bool, &[]));
            if let Part::Joint { towers, .. } = self.spmd.part {
                let flag = |tower: usize| self.argument(Argument::TowerOk(tower), DType::Bool, &[]);
                self.towers_ok = (0..towers).map(flag).collect();
            }
        }
        self.bind_key();
        if !self.barriers && !program.materialized.is_empty() {
            let zero = self.argument(Argument::Zero, DType::I64, &[]);
            self.materialize = Materialize::Branch(self.w.convert(&zero, DType::I32));
        }
        for (i, buffer) in program.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            if let BufferKind::Constant(t) = &buffer.kind
                && used.contains(&id)
                && buffer.bytes() <= INLINE_BYTES
            {
                let value = self.w.tensor(t);
                self.values.insert(id, value);
            }
        }
    }

    /// Declares the random key, if the program draws random numbers.
    fn bind_key(&mut self) {
        let random: Vec<(&String, bool)> = self
            .program
            .kernels
            .iter()
            .filter_map(|n| match &n.kernel {
                Kernel::Random { stream, continued, .. } => Some((stream, *continued)),
                _ => None,
            })
            .collect();
        if random.is_empty() {
            return;
        }
        let seed = self.argument(Argument::Seed, DType::I64, &[]);
        let draw = self.argument(Argument::Draw, DType::I64, &[]);
        self.draw = Some(draw.clone());
        let of_towers =
            random.into_iter().filter(|(_, continued)| *continued && self.spmd.replica_count() > 1);
        let mut streams: Vec<&String> = of_towers.map(|(stream, _)| stream).collect();
        // A kernel that draws again draws from the same stream.
        let mut seen = HashSet::new();
        streams.retain(|stream| seen.insert(*stream));
        let given: Vec<Value> = streams
            .iter()
            .map(|stream| self.argument(Argument::RandomOffset((*stream).clone()), DType::I64, &[]))
            .collect();
        let mut bits = |v: &Value| self.w.op("bitcast_convert", &[v], "", Element::U64, &[]);
        self.key = Some(Key { seed: bits(&seed), draw: bits(&draw) });
        self.random_offsets = streams.into_iter().cloned().zip(given.iter().map(bits)).collect();
    }

    /// Prints all kernels.
    pub(super) fn kernels(&mut self) -> Result<()> {
        self.behind_barrier.clear();
        for node in &self.program.kernels {
            self.recomputing = node.outputs.first().and_then(|b| self.program.recomputed.get(b)).copied();
            self.kernel(node).map_err(|e| e.within(&node.origin.name).at(node.origin.site))?;
        }
        self.recomputing = None;
        Ok(())
    }

    fn read(&mut self, v: &View) -> Value {
        let mut buffer = self.values[&v.buffer].clone();
        let constant = matches!(self.program.buffer(v.buffer).kind, BufferKind::Constant(_));
        if let Some(Recomputed { group, after }) = self.recomputing
            && self.program.recomputed.get(&v.buffer).is_none_or(|other| other.group != group)
            && !constant
        {
            buffer = self.behind_barrier(&buffer, group, after);
        }
        view::read(&mut self.w, &buffer, v)
    }

    /// Returns a value that the compiler takes for another one and computes no earlier than `after`,
    /// so that what is computed from it again is neither merged with the first time nor moved there.
    fn behind_barrier(&mut self, value: &Value, group: u32, after: Option<BufferId>) -> Value {
        if let Some(found) = self.behind_barrier.get(&(group, value.to_string())) {
            return found.clone();
        }
        let after = after.and_then(|b| self.values.get(&b));
        let operands: Vec<&Value> = [value].into_iter().chain(after).collect();
        let behind = self.w.optimization_barrier(&operands).swap_remove(0);
        self.behind_barrier.insert((group, value.to_string()), behind.clone());
        behind
    }

    fn read_all(&mut self, views: &[View]) -> Vec<Value> {
        views.iter().map(|v| self.read(v)).collect()
    }

    fn kernel(&mut self, node: &KernelNode) -> Result<()> {
        // All towers, of all processes, run this program.
        let name = split_tower(&node.origin.name).1;
        self.w.comment(&format!("{} {name}", node.kernel.name()));
        let specs: Vec<(DType, Vec<usize>)> = node
            .outputs
            .iter()
            .map(|&b| (self.program.buffer(b).dtype, self.program.buffer(b).sizes.clone()))
            .collect();
        let results = self.results(node, &specs)?;
        for ((&buffer, (dtype, sizes)), value) in node.outputs.iter().zip(specs).zip(results) {
            let value = expr::store(&mut self.w, &value, dtype);
            let mut value = self.w.reshape(&value, &sizes);
            if self.program.materialized.contains(&buffer) {
                value = self.w.materialize(&value, &self.materialize);
            }
            self.values.insert(buffer, value);
        }
        Ok(())
    }

    fn results(&mut self, node: &KernelNode, specs: &[(DType, Vec<usize>)]) -> Result<Vec<Value>> {
        let (dtype, sizes) = &specs[0];
        Ok(match &node.kernel {
            Kernel::Map(body) => {
                let operands = self.read_all(&body.operands);
                let stored: Vec<DType> = specs.iter().map(|(dtype, _)| *dtype).collect();
                let float = narrow::compute_dtype(&body.expr, &operands, &stored);
                expr::write(&mut self.w, &body.sizes, &operands, &body.expr, float)
            }
            Kernel::Reduce { body, reduced, kinds } => {
                let dims: Vec<usize> = (0..reduced.len()).filter(|&d| reduced[d]).collect();
                let operands = self.read_all(&body.operands);
                let values = expr::write(&mut self.w, &body.sizes, &operands, &body.expr, DType::F32);
                let mut results = Vec::new();
                for (kind, x) in kinds.iter().zip(&values) {
                    let dtype = specs[results.len()].0;
                    results.extend(reduce::write(&mut self.w, *kind, x, &dims, dtype));
                }
                results
            }
            Kernel::Contract { kind, lhs, rhs, epilogue } => {
                let (lhs, rhs) = (self.read(lhs), self.read(rhs));
                let y = self.contract(kind, &lhs, &rhs, *dtype, sizes);
                match epilogue {
                    None => vec![y],
                    Some(e) => {
                        let mut operands = vec![y];
                        operands.extend(self.read_all(&e.operands));
                        expr::write(&mut self.w, sizes, &operands, &e.expr, DType::F32)
                    }
                }
            }
            Kernel::Pool { kind, pool, inputs } => {
                let inputs = self.read_all(inputs);
                if inputs[0].is_empty() || sizes.contains(&0) {
                    return Ok(specs.iter().map(|(d, s)| self.w.splat(0.0, *d, s)).collect());
                }
                pool::write(&mut self.w, *kind, pool, &inputs)?
            }
            Kernel::Copy(src) => vec![self.read(src)],
            Kernel::Pad { src, low, high, interior } => {
                let src = self.read(src);
                let around: Vec<[i64; 2]> =
                    low.iter().zip(high).map(|(&l, &h)| [l as i64, h as i64]).collect();
                vec![self.w.pad(&src, 0.0, &around, interior)]
            }
            Kernel::Concat { parts, axis } => {
                let parts = self.read_all(parts);
                let attribute = format!("dimension = {axis} : i64");
                let all: Vec<&Value> = parts.iter().collect();
                vec![self.w.op("concatenate", &all, &attribute, *dtype, sizes)]
            }
            Kernel::Gather { kind, gather, rows, indices } => {
                let (table, indices) = (self.read(rows), self.read(indices));
                let (found, bad) = gather::write(&mut self.w, *kind, gather, &table, &indices);
                let checked = CheckedGather { origin: node.origin.clone(), kind: *kind, rows: gather.rows };
                self.bad.extend(bad.map(|bad| (checked, bad)));
                vec![found]
            }
            Kernel::Cumsum { cumsum, input } => {
                let input = self.read(input);
                vec![cumsum::cumsum(&mut self.w, cumsum, &input)]
            }
            Kernel::Argsort { argsort, input } => {
                let input = self.read(input);
                vec![sort::argsort(&mut self.w, argsort, &input)]
            }
            Kernel::Nms { nms, input } => {
                let input = self.read(input);
                vec![nms::nms(&mut self.w, nms, &input)]
            }
            Kernel::Random { stream, first, .. } => {
                let mut key = self.key.clone().expect("a program that draws has a key");
                if let Some(Recomputed { group, after }) = self.recomputing {
                    key.draw = self.behind_barrier(&key.draw, group, after);
                }
                let len = kir::elements(sizes);
                let first = match self.random_offsets.get(stream) {
                    Some(offset) => Offset::Argument(offset.clone()),
                    None => Offset::Known(*first),
                };
                vec![random::uniform(&mut self.w, &key, stream, &first, len, *dtype)]
            }
            Kernel::Attention { kind, attention, inputs } => {
                let inputs = self.read_all(inputs);
                match self.fused_attention.write(&mut self.w, *kind, attention, &inputs) {
                    Some(results) => results,
                    None => attention::write(&mut self.w, *kind, attention, &inputs, self.precision),
                }
            }
            Kernel::AllReduce { input, .. } => {
                let input = self.read(input);
                vec![collectives::all_reduce(&mut self.w, "add", &input, self.spmd.replica_count())]
            }
            Kernel::ReduceScatter { input, shards, .. } => {
                let input = self.read(input);
                vec![collectives::reduce_scatter(&mut self.w, &input, shards)]
            }
            Kernel::Shard { input, shards } => {
                let mut value = self.read(input);
                if collectives::varying(self.spmd).contains(&input.buffer) {
                    value = collectives::from_first_tower(&mut self.w, &value, self.spmd);
                }
                vec![collectives::shard(&mut self.w, &value, shards)]
            }
            Kernel::AllGather { inputs, shards } => {
                let inputs = self.read_all(inputs);
                let gather = |(input, (_, sizes)): (&Value, &(DType, Vec<usize>))| {
                    collectives::all_gather(&mut self.w, input, shards, sizes)
                };
                inputs.iter().zip(specs).map(gather).collect()
            }
            Kernel::Custom { .. } => {
                return Err(Error::new(ErrorKind::Unsupported, "this operation is not supported on XLA")
                    .note("custom kernels run only on the CPU engine: use a device cpu:N"));
            }
        })
    }

    fn contract(
        &mut self,
        kind: &ContractKind,
        lhs: &Value,
        rhs: &Value,
        dtype: DType,
        sizes: &[usize],
    ) -> Value {
        if lhs.is_empty() || rhs.is_empty() || sizes.contains(&0) {
            return self.w.splat(0.0, dtype, sizes);
        }
        let [lhs, rhs] = [lhs, rhs].map(|operand| match operand.element {
            Element::Of(DType::U8) => self.integers(operand),
            _ => operand.clone(),
        });
        let y = contract::write(&mut self.w, kind, &lhs, &rhs, self.precision);
        self.w.reshape(&y, sizes)
    }

    /// Prints the integers that the bytes of a contraction stand for, in f32: not every backend
    /// convolves integers, and these are exact in all types that a device multiplies f32 in.
    fn integers(&mut self, bytes: &Value) -> Value {
        let numbers = self.w.convert(bytes, DType::F32);
        let zero = self.w.splat(128.0, DType::F32, &bytes.sizes);
        self.w.like("subtract", &[&numbers, &zero])
    }

    /// Prints the check of a step and its results.
    pub(super) fn step_results(&mut self) -> StepResults {
        let program = self.program;
        let mut finite = self.w.splat(1.0, DType::Bool, &[]);
        self.w.comment("check");
        // The values to check, each with whether it may be infinite.
        let fed = self.feeds.iter().filter(|(_, v)| v.element.is_float());
        let mut checked: Vec<(Value, bool)> =
            fed.map(|(i, v)| (v.clone(), program.infinite.contains(i))).collect();
        checked.extend(program.finite.iter().map(|b| (self.values[b].clone(), false)));
        let varying = collectives::varying(self.spmd);
        let count = self.spmd.replica_count();
        let mut next = Vec::new();
        for u in &program.updates {
            let mut new = self.read(&u.value);
            if varying.contains(&u.value.buffer) {
                new = collectives::from_first_tower(&mut self.w, &new, self.spmd);
            }
            let must_be_finite = u.finite && new.element.is_float();
            if must_be_finite {
                checked.push((new.clone(), false));
            }
            next.push((new, must_be_finite));
        }
        for flags in self.finite_flags(&checked) {
            let finite_here = reduce::all(&mut self.w, &flags);
            finite = self.w.like("and", &[&finite, &finite_here]);
        }
        let mut indices_ok = self.no_bad_index();
        let mut ok = self.w.like("and", &[&finite, &indices_ok]);
        let mut reported = finite;
        if self.spmd.replicas.is_some() || self.prior_steps_ok.is_some() {
            ok = collectives::all_reduce_and(&mut self.w, &ok, count);
            indices_ok = collectives::all_reduce_and(&mut self.w, &indices_ok, count);
        }
        if self.spmd.replicas.is_some() {
            // The towers of other processes report to them. All processes must learn of the failure of
            // any, so that they go on to run the same programs.
            reported = ok.clone();
        }
        let mut fetches = Vec::new();
        let mut scalars = Vec::new();
        let mut tensors = Vec::new();
        for fetched in self.read_all(&program.fetches) {
            match fetched.element {
                Element::Of(dtype) if fetched.sizes.is_empty() => {
                    fetches.push(FetchPlace::Report(1 + 2 * self.bad.len() + scalars.len(), dtype));
                    scalars.push(scalar_bits(&mut self.w, &fetched, dtype));
                }
                _ => {
                    fetches.push(FetchPlace::Result(tensors.len()));
                    tensors.push(fetched);
                }
            }
        }
        StepResults { ok, indices_ok, next, fetches, tensors, reported, scalars }
    }

    /// Returns whether a step is skipped, and the run goes on: if its check fails (`ok` is false), all of
    /// `others` are true, and the rules of variables allow it. `None` if no updated variable has a rule.
    pub(super) fn skips(&mut self, ok: &Value, others: &[&Value]) -> Option<Value> {
        let rules = overflow_rules::rules([self.program]);
        let mut skips = (!rules.is_empty()).then(|| self.w.like("not", &[ok]))?;
        for other in others {
            skips = self.w.like("and", &[&skips, other]);
        }
        for (variable, rule) in rules.into_iter().filter(|(_, rule)| rule.least.is_finite()) {
            let next = self.after_overflow(variable, rule);
            let least = self.w.splat(rule.least, next.element, &next.sizes);
            let enough = self.w.compare("GE", &next, &least);
            skips = self.w.like("and", &[&skips, &enough]);
        }
        Some(skips)
    }

    /// Returns the value of a scalar variable after a step that is skipped.
    fn after_overflow(&mut self, variable: usize, rule: OnOverflow) -> Value {
        let old = self.variables[&variable].clone();
        let factor = self.w.splat(rule.factor, old.element, &old.sizes);
        let summand = self.w.splat(rule.summand, old.element, &old.sizes);
        let product = self.w.like("multiply", &[&old, &factor]);
        self.w.like("add", &[&product, &summand])
    }

    /// Returns the values of the updated variables after a step: the next ones if `take`, and those of
    /// a skipped step if `skips`.
    pub(super) fn commit(
        &mut self,
        next: &[(Value, bool)],
        take: &Value,
        skips: Option<&Value>,
    ) -> Vec<Value> {
        let mut results = Vec::new();
        for (u, (new, must_be_finite)) in self.program.updates.iter().zip(next) {
            let old = self.variables.get(&u.variable).expect("updated variables are arguments").clone();
            let mut take = take.clone();
            if *must_be_finite {
                // The compiler may recompute the value here, and round to infinity what the check
                // saw as the largest float.
                let fine = reduce::is_finite(&mut self.w, new);
                let all = self.w.broadcast(&take, &[], &new.sizes);
                take = self.w.like("and", &[&all, &fine]);
            }
            let mut result = self.w.select(&take, new, &old);
            if let (Some(rule), Some(skips)) = (u.on_overflow, skips) {
                let skipped = self.after_overflow(u.variable, rule);
                result = self.w.select(skips, &skipped, &result);
            }
            results.push(result);
        }
        results
    }

    /// Returns the updated variables, in the order of the results.
    pub(super) fn updated(&self) -> Vec<usize> {
        self.program.updates.iter().map(|u| u.variable).collect()
    }

    /// Finishes with the next values of variables, the fetches and the report.
    fn run(mut self) -> Module {
        let StepResults { mut ok, indices_ok, next, fetches, tensors, reported, scalars } =
            self.step_results();
        for flag in &self.towers_ok {
            ok = self.w.like("and", &[&ok, flag]);
        }
        let prior = self.prior_steps_ok.clone();
        let skips = prior.and_then(|prior| self.skips(&ok, &[&indices_ok, &prior]));
        if let Some(prior) = &self.prior_steps_ok {
            ok = self.w.like("and", &[&ok, prior]);
        }
        let mut results = self.commit(&next, &ok, skips.as_ref());
        let report = self.report(&reported, skips.as_ref(), scalars);
        // Runs that were launched before a skipped one is known to be can go on.
        if let Some(skips) = &skips {
            ok = self.w.like("or", &[&ok, skips]);
        }
        let at = tensors.len();
        results.extend(tensors);
        results.push(report);
        match &self.spmd.part {
            Part::Tower { passes } => {
                results.extend(self.read_all(passes));
                results.push(ok);
            }
            _ => results.extend(self.prior_steps_ok.is_some().then_some(ok)),
        }
        let next_draw = self.draw.clone().map(|draw| {
            let one = self.w.integer(1, DType::I64, &[]);
            self.w.like("add", &[&draw, &one])
        });
        let draws = next_draw.is_some();
        results.extend(next_draw);
        let updated = self.updated();
        let module = self.finish(updated, fetches, at, results, Vec::new());
        Module { draws, ..module }
    }

    /// Returns whether the elements of the checked values are finite, elementwise, with one tensor of
    /// flags for up to [`CHECKS_PER_REDUCTION`] values of the same sizes. Each reduction is one or two
    /// kernels on a GPU, and a network has hundreds of small gradients, weights and moments, but only
    /// few different sizes.
    fn finite_flags(&mut self, checked: &[(Value, bool)]) -> Vec<Value> {
        let mut groups: Vec<(Value, usize)> = Vec::new();
        for (value, infinite) in checked {
            let flags = match infinite {
                true => reduce::is_number(&mut self.w, value),
                false => reduce::is_finite(&mut self.w, value),
            };
            let fits = |(all, count): &&mut (Value, usize)| {
                all.sizes == flags.sizes && *count < CHECKS_PER_REDUCTION
            };
            match groups.iter_mut().find(fits) {
                Some((all, count)) => {
                    *all = self.w.like("and", &[all, &flags]);
                    *count += 1;
                }
                None => groups.push((flags, 1)),
            }
        }
        groups.into_iter().map(|(flags, _)| flags).collect()
    }

    /// Finishes with whether each result is finite, and the report.
    fn find_non_finite(mut self) -> Module {
        let mut tested = Vec::new();
        let mut flags = Vec::new();
        for node in &self.program.kernels {
            for b in node.outputs.iter().filter(|b| self.program.buffer(**b).dtype.is_float()) {
                let fine = reduce::all_finite(&mut self.w, &self.values[b]);
                flags.push(self.w.reshape(&fine, &[1]));
                tested.push((*b, node.origin.clone()));
            }
        }
        let all: Vec<&Value> = flags.iter().collect();
        let flags = match all.len() {
            0 => self.w.splat(1.0, DType::Bool, &[0]),
            n => self.w.op("concatenate", &all, "dimension = 0 : i64", DType::Bool, &[n]),
        };
        let yes = self.w.splat(1.0, DType::Bool, &[]);
        let report = self.report(&yes, None, Vec::new());
        self.finish(Vec::new(), Vec::new(), 1, vec![flags, report], tested)
    }

    /// Returns whether all indices are in range.
    fn no_bad_index(&mut self) -> Value {
        let mut ok = self.w.splat(1.0, DType::Bool, &[]);
        for (_, bad) in &self.bad {
            let never = self.w.integer(i64::MAX as i128, DType::I64, &[]);
            let fine = self.w.compare("EQ", &bad.position, &never);
            ok = self.w.like("and", &[&ok, &fine]);
        }
        ok
    }

    /// Returns the report: whether checked values are finite plus, in the next bit, whether the step is
    /// skipped; the bad indices; and the fetches that are scalars.
    pub(super) fn report(&mut self, finite: &Value, skips: Option<&Value>, scalars: Vec<Value>) -> Value {
        let mut flags = self.w.convert(finite, DType::I64);
        if let Some(skips) = skips {
            let (skips, two) = (self.w.convert(skips, DType::I64), self.w.integer(2, DType::I64, &[]));
            let skips = self.w.like("multiply", &[&skips, &two]);
            flags = self.w.like("add", &[&flags, &skips]);
        }
        let mut report = vec![flags];
        report.extend(self.bad.iter().flat_map(|(_, bad)| [bad.position.clone(), bad.index.clone()]));
        report.extend(scalars);
        let report: Vec<Value> = report.iter().map(|n| self.w.reshape(n, &[1])).collect();
        let all: Vec<&Value> = report.iter().collect();
        self.w.op("concatenate", &all, "dimension = 0 : i64", DType::I64, &[all.len()])
    }

    pub(super) fn finish(
        mut self,
        updated: Vec<usize>,
        fetches: Vec<FetchPlace>,
        report: usize,
        results: Vec<Value>,
        tested: Vec<(BufferId, Origin)>,
    ) -> Module {
        self.w.finish_function(&results);
        let mut text = String::from("module @tensorpack {\n  func.func public @main(");
        for (i, (argument, value)) in self.arguments.iter().enumerate() {
            let alias = match argument {
                // The next value takes over its memory, so that its address stays the same: if one
                // changes, XLA updates the CUDA graphs that it has recorded.
                Argument::Variable(v) => updated.iter().position(|u| u == v),
                Argument::PriorStepsOk => Some(updated.len() + report + 1),
                _ => None,
            };
            let alias = alias.map_or(String::new(), |at| format!(" {{tf.aliasing_output = {at} : i32}}"));
            let comma = if i == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{value}: {}{alias}", value.ty());
        }
        let types: Vec<String> = results.iter().map(|v| tensor_type(v.element, &v.sizes)).collect();
        let _ = write!(text, ") -> ({}) {{\n{}  }}\n}}\n", types.join(", "), self.w.finish());
        Module {
            text,
            arguments: self.arguments.into_iter().map(|(a, _)| a).collect(),
            updated,
            fetches,
            report,
            draws: false,
            fused_attention: self.fused_attention.is_used,
            gathers: self.bad.into_iter().map(|(checked, _)| checked).collect(),
            tested,
        }
    }
}

/// Returns the bits of a scalar as an i64; [`scalar_from_bits`] reads them.
fn scalar_bits(w: &mut Writer, x: &Value, dtype: DType) -> Value {
    match dtype {
        DType::F64 => w.op("bitcast_convert", &[x], "", DType::I64, &[]),
        DType::F32 | DType::Bf16 | DType::F16 => {
            // Every float of 16 bits is an f32.
            let wide = w.widened(x);
            let bits = w.op("bitcast_convert", &[&wide], "", DType::I32, &[]);
            w.convert(&bits, DType::I64)
        }
        _ => w.convert(x, DType::I64),
    }
}

/// Returns the scalar whose bits a module has stored in its report.
pub(super) fn scalar_from_bits(bits: i64, dtype: DType) -> HostTensor {
    match dtype {
        DType::F64 => HostTensor::scalar(f64::from_bits(bits as u64)),
        DType::F32 => HostTensor::scalar(f32::from_bits(bits as u32)),
        DType::Bf16 => HostTensor::scalar(bf16::from_f32(f32::from_bits(bits as u32))),
        DType::F16 => HostTensor::scalar(f16::from_f32(f32::from_bits(bits as u32))),
        DType::I32 => HostTensor::scalar(bits as i32),
        DType::I64 => HostTensor::scalar(bits),
        DType::U8 => HostTensor::scalar(bits as u8),
        DType::Bool => HostTensor::scalar(bits != 0),
    }
}
