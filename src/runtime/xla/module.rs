//! Prints a whole program as a StableHLO module: arguments, kernels, results.

use super::contract::{self, Precision};
use super::gather::{self, BadIndex};
use super::random::{self, Key, Offset};
use super::spmd::SpmdProgram;
use super::stablehlo::{Element, Materialize, Value, Writer, tensor_type};
use super::{attention, bf16, collectives, cumsum, expr, pool, reduce, sort, view};
use crate::graph::split_tower;
use crate::kir::{
    self, BufferId, BufferKind, ContractKind, GatherKind, Kernel, KernelNode, Origin, Program, View,
};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Larger constants are arguments that stay on the device, instead of text in the module.
const INLINE_BYTES: usize = 256;

/// The purpose of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Fetches values and updates variables.
    Run,
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
    /// A feed, by index.
    Feed(usize),
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

/// A program as text, with its arguments and results.
///
/// The results are the next values of variables, the fetches, and the report: i64s, of which the
/// first is 1 if all checked values are finite, followed by the position (or `i64::MAX`) and the
/// value of the first bad index of each gather. If there are updates, the last result is
/// [`Argument::PriorStepsOk`] of the next run. A module that searches for non-finite results
/// returns only a boolean for each result, and the report.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) text: String,
    pub(super) arguments: Vec<Argument>,
    /// The updated variables, in the order of the results.
    pub(super) updated: Vec<usize>,
    pub(super) fetches: usize,
    pub(super) gathers: Vec<CheckedGather>,
    /// The origin of each result that a search tests.
    pub(super) tested: Vec<Origin>,
}

/// Prints a program as a module, which runs on one device per tower.
///
/// `barriers`: whether the compiler keeps optimization barriers until operations are fused.
pub(super) fn module(
    spmd: &SpmdProgram,
    purpose: Purpose,
    full_precision: bool,
    barriers: bool,
) -> Result<Module> {
    let mut cx = ModuleWriter::new(spmd, full_precision, barriers);
    cx.bind_arguments(purpose);
    for node in &spmd.program.kernels {
        cx.kernel(node).map_err(|e| e.within(&node.origin.name).at(node.origin.site))?;
    }
    Ok(match purpose {
        Purpose::Run => cx.run(),
        Purpose::FindNonFinite => cx.find_non_finite(),
    })
}

struct ModuleWriter<'a> {
    precision: Precision,
    spmd: &'a SpmdProgram,
    program: &'a Program,
    w: Writer,
    values: HashMap<BufferId, Value>,
    arguments: Vec<(Argument, Value)>,
    key: Option<Key>,
    random_offsets: HashMap<String, Value>,
    prior_steps_ok: Option<Value>,
    materialize: Materialize,
    barriers: bool,
    bad: Vec<(CheckedGather, BadIndex)>,
}

impl<'a> ModuleWriter<'a> {
    fn new(spmd: &'a SpmdProgram, full_precision: bool, barriers: bool) -> ModuleWriter<'a> {
        ModuleWriter {
            precision: if full_precision { Precision::Full } else { Precision::Fast },
            spmd,
            program: &spmd.program,
            w: Writer::default(),
            values: HashMap::new(),
            arguments: Vec::new(),
            key: None,
            random_offsets: HashMap::new(),
            prior_steps_ok: None,
            materialize: Materialize::Barrier,
            barriers,
            bad: Vec::new(),
        }
    }

    fn argument(&mut self, argument: Argument, dtype: DType, sizes: &[usize]) -> Value {
        let value = self.w.argument(dtype, sizes);
        self.arguments.push((argument, value.clone()));
        value
    }

    /// Declares the arguments: variables that are read or updated, feeds that are read, constants,
    /// the random key.
    fn bind_arguments(&mut self, purpose: Purpose) {
        let program = self.program;
        let mut used: HashSet<BufferId> =
            program.kernels.iter().flat_map(|n| n.kernel.reads()).map(|v| v.buffer).collect();
        if purpose == Purpose::Run {
            used.extend(program.fetches.iter().chain(&program.costs).map(|v| v.buffer));
            used.extend(program.updates.iter().map(|u| u.value.buffer));
        }
        let written = |v: usize| program.updates.iter().any(|u| u.variable == v);
        for (i, buffer) in program.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            let value = match &buffer.kind {
                BufferKind::Variable(v) if used.contains(&id) || written(*v) => {
                    self.argument(Argument::Variable(*v), buffer.dtype, &buffer.sizes)
                }
                BufferKind::Feed(f) if used.contains(&id) => {
                    self.argument(Argument::Feed(*f), buffer.dtype, &buffer.sizes)
                }
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
            if !program.reads(u.variable) && purpose == Purpose::Run {
                self.argument(Argument::Variable(u.variable), u.value.dtype, &u.value.sizes);
            }
        }
        if purpose == Purpose::Run && !program.updates.is_empty() {
            self.prior_steps_ok = Some(self.argument(Argument::PriorStepsOk, DType::Bool, &[]));
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
        let of_towers =
            random.into_iter().filter(|(_, continued)| *continued && self.spmd.replica_count() > 1);
        let streams: Vec<&String> = of_towers.map(|(stream, _)| stream).collect();
        let given: Vec<Value> = streams
            .iter()
            .map(|stream| self.argument(Argument::RandomOffset((*stream).clone()), DType::I64, &[]))
            .collect();
        let mut bits = |v: &Value| self.w.op("bitcast_convert", &[v], "", Element::U64, &[]);
        self.key = Some(Key { seed: bits(&seed), draw: bits(&draw) });
        self.random_offsets = streams.into_iter().cloned().zip(given.iter().map(bits)).collect();
    }

    fn read(&mut self, v: &View) -> Value {
        let buffer = self.values[&v.buffer].clone();
        view::read(&mut self.w, &buffer, v)
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
                let float = bf16::compute_dtype(&body.expr, &operands, &stored);
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
            Kernel::Random { stream, first, .. } => {
                let key = self.key.clone().expect("a program that draws has a key");
                let len = kir::elements(sizes);
                let first = match self.random_offsets.get(stream) {
                    Some(offset) => Offset::Argument(offset.clone()),
                    None => Offset::Known(*first),
                };
                vec![random::uniform(&mut self.w, &key, stream, &first, len, *dtype)]
            }
            Kernel::Attention { kind, attention, inputs } => {
                let inputs = self.read_all(inputs);
                attention::write(&mut self.w, *kind, attention, &inputs, self.precision)
            }
            Kernel::AllReduce { input, .. } => {
                let input = self.read(input);
                vec![collectives::all_reduce(&mut self.w, "add", &input, self.spmd.replica_count())]
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
        let y = contract::write(&mut self.w, kind, lhs, rhs, self.precision);
        self.w.reshape(&y, sizes)
    }

    /// Finishes with the next values of variables, the fetches and the report.
    fn run(mut self) -> Module {
        let program = self.program;
        let mut finite = self.w.splat(1.0, DType::Bool, &[]);
        self.w.comment("check");
        // The values to check, each with whether it may be infinite.
        let fed = self.arguments.iter().filter(|(_, v)| v.element.is_float()).filter_map(|(a, v)| match a {
            Argument::Feed(i) => Some((v.clone(), program.infinite.contains(i))),
            _ => None,
        });
        let mut checked: Vec<(Value, bool)> = fed.collect();
        checked.extend(program.finite.iter().map(|b| (self.values[b].clone(), false)));
        let varying = collectives::varying(self.spmd);
        let count = self.spmd.replica_count();
        let mut next = Vec::new();
        for u in &program.updates {
            let mut new = self.read(&u.value);
            if varying.contains(&u.value.buffer) {
                new = collectives::from_first_tower(&mut self.w, &new, self.spmd);
            }
            if u.finite && new.element.is_float() {
                checked.push((new.clone(), false));
            }
            next.push(new);
        }
        for (value, infinite) in &checked {
            let finite_here = match infinite {
                true => reduce::no_nan(&mut self.w, value),
                false => reduce::all_finite(&mut self.w, value),
            };
            finite = self.w.like("and", &[&finite, &finite_here]);
        }
        let ok = self.and_no_bad_index(&finite);
        let mut reported = finite;
        let mut ok = ok;
        if self.spmd.replicas.is_some() || self.prior_steps_ok.is_some() {
            ok = collectives::all_reduce_and(&mut self.w, &ok, count);
        }
        if self.spmd.replicas.is_some() {
            // The towers of other processes report to them. All processes must learn of the failure of
            // any, so that they go on to run the same programs.
            reported = ok.clone();
        }
        if let Some(prior) = &self.prior_steps_ok {
            ok = self.w.like("and", &[&ok, prior]);
        }
        let mut results = Vec::new();
        for (u, new) in program.updates.iter().zip(&next) {
            let is_variable =
                |(a, _): &&(Argument, Value)| matches!(a, Argument::Variable(v) if *v == u.variable);
            let old =
                self.arguments.iter().find(is_variable).expect("updated variables are arguments").1.clone();
            let mut take = ok.clone();
            if u.finite && new.element.is_float() {
                // The compiler may recompute the value here, and round to infinity what the check
                // saw as the largest float.
                let fine = self.w.op("is_finite", &[new], "", DType::Bool, &new.sizes);
                let ok = self.w.broadcast(&ok, &[], &new.sizes);
                take = self.w.like("and", &[&ok, &fine]);
            }
            results.push(self.w.select(&take, new, &old));
        }
        let updated: Vec<usize> = program.updates.iter().map(|u| u.variable).collect();
        results.extend(self.read_all(&program.fetches));
        results.push(self.report(&reported));
        results.extend(self.prior_steps_ok.is_some().then_some(ok));
        self.finish(updated, program.fetches.len(), results, Vec::new())
    }

    /// Finishes with whether each result is finite, and the report.
    fn find_non_finite(mut self) -> Module {
        let mut tested = Vec::new();
        let mut flags = Vec::new();
        for node in &self.program.kernels {
            for b in node.outputs.iter().filter(|b| self.program.buffer(**b).dtype.is_float()) {
                let fine = reduce::all_finite(&mut self.w, &self.values[b]);
                flags.push(self.w.reshape(&fine, &[1]));
                tested.push(node.origin.clone());
            }
        }
        let all: Vec<&Value> = flags.iter().collect();
        let flags = match all.len() {
            0 => self.w.splat(1.0, DType::Bool, &[0]),
            n => self.w.op("concatenate", &all, "dimension = 0 : i64", DType::Bool, &[n]),
        };
        let yes = self.w.splat(1.0, DType::Bool, &[]);
        let report = self.report(&yes);
        self.finish(Vec::new(), 0, vec![flags, report], tested)
    }

    /// Returns `flag`, and that all indices are in range.
    fn and_no_bad_index(&mut self, flag: &Value) -> Value {
        let mut ok = flag.clone();
        for (_, bad) in &self.bad {
            let never = self.w.integer(i64::MAX as i128, DType::I64, &[]);
            let fine = self.w.compare("EQ", &bad.position, &never);
            ok = self.w.like("and", &[&ok, &fine]);
        }
        ok
    }

    fn report(&mut self, finite: &Value) -> Value {
        let finite = self.w.convert(finite, DType::I64);
        let mut report = vec![finite];
        report.extend(self.bad.iter().flat_map(|(_, bad)| [bad.position.clone(), bad.index.clone()]));
        let report: Vec<Value> = report.iter().map(|n| self.w.reshape(n, &[1])).collect();
        let all: Vec<&Value> = report.iter().collect();
        self.w.op("concatenate", &all, "dimension = 0 : i64", DType::I64, &[all.len()])
    }

    fn finish(
        mut self,
        updated: Vec<usize>,
        fetches: usize,
        results: Vec<Value>,
        tested: Vec<Origin>,
    ) -> Module {
        self.w.finish_function(&results);
        let mut text = String::from("module @tensorpack {\n  func.func public @main(");
        for (i, (argument, value)) in self.arguments.iter().enumerate() {
            let alias = match argument {
                // The next value takes over its memory.
                Argument::Variable(v) => updated.iter().position(|u| u == v),
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
            gathers: self.bad.into_iter().map(|(checked, _)| checked).collect(),
            tested,
        }
    }
}
