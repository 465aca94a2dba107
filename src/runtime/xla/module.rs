//! A whole program as a module of StableHLO: its arguments, what it computes, and what comes back.

use super::contract::{self, Precision};
use super::random::{self, First, Key};
use super::rows::{self, BadIndex};
use super::spmd::SpmdProgram;
use super::text::{Element, Materialize, Value, Writer, tensor_type};
use super::{expr, narrow, pool, reduce, towers, view};
use crate::kir::{
    self, BufferId, BufferKind, ContractKind, GatherKind, Kernel, KernelNode, Origin, Program, View,
};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Constants of more bytes are arguments that stay on the device: text is no place for them.
const INLINE_BYTES: usize = 256;

/// What a module is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Fetches values and updates variables.
    Run,
    /// Says which results are finite, and changes nothing.
    Search,
}

/// What a module is called with.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// A variable's value.
    Variable(usize),
    /// Whether the runs before went prior_steps_ok: else this one changes nothing.
    PriorStepsOk,
    /// What is fed, by number.
    Feed(usize),
    /// What never changes.
    Constant(HostTensor),
    /// The session's seed, its bits as an i64.
    Seed,
    /// Which draw of random streams this run takes, likewise.
    Draw,
    /// The number of the tower's first random element, by stream.
    First(String),
    /// The number 0, which the compiler does not know, as an i64: see [`Materialize::Branch`].
    Zero,
}

/// A lookup whose numbers are checked.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) origin: Origin,
    pub(super) kind: GatherKind,
    pub(super) rows: usize,
}

/// A program as text, and what goes in and comes out.
///
/// Results are the next values of variables, then the fetches, then the report: i64s, of which the first is 1 if all
/// that was checked is finite; then, for each lookup, where its first bad number is (or `i64::MAX`) and which. If there
/// are updates, the last result is what [`Argument::PriorStepsOk`] is for the next run.
/// A module that searches gives only truth values, one for each result, and the report.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) text: String,
    pub(super) arguments: Vec<Argument>,
    /// Variables that get next values, in the order of the results.
    pub(super) updated: Vec<usize>,
    pub(super) fetches: usize,
    pub(super) lookups: Vec<Checked>,
    /// What each truth value of a search is about.
    pub(super) searched: Vec<Origin>,
}

/// Writes a program as a module, which as many devices run as there are towers.
///
/// `barriers` says that the compiler keeps optimization barriers until operations are fused.
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
        Purpose::Search => cx.search(),
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
    firsts: HashMap<String, Value>,
    prior_steps_ok: Option<Value>,
    materialize: Materialize,
    barriers: bool,
    bad: Vec<(Checked, BadIndex)>,
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
            firsts: HashMap::new(),
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

    /// Names what comes from outside: variables that are read or written, feeds that are read, constants, the key.
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
        // The old value is kept when the check fails, so variables that nobody reads come in as well.
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

    /// What random numbers are keyed by, if the program draws any.
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
        let of_towers = random.into_iter().filter(|(_, continued)| *continued && self.spmd.towers.len() > 1);
        let streams: Vec<&String> = of_towers.map(|(stream, _)| stream).collect();
        let given: Vec<Value> = streams
            .iter()
            .map(|stream| self.argument(Argument::First((*stream).clone()), DType::I64, &[]))
            .collect();
        let mut bits = |v: &Value| self.w.op("bitcast_convert", &[v], "", Element::U64, &[]);
        self.key = Some(Key { seed: bits(&seed), draw: bits(&draw) });
        self.firsts = streams.into_iter().cloned().zip(given.iter().map(bits)).collect();
    }

    fn see(&mut self, v: &View) -> Value {
        let buffer = self.values[&v.buffer].clone();
        view::see(&mut self.w, &buffer, v)
    }

    fn all(&mut self, views: &[View]) -> Vec<Value> {
        views.iter().map(|v| self.see(v)).collect()
    }

    fn kernel(&mut self, node: &KernelNode) -> Result<()> {
        self.w.comment(&format!("{} {}", node.kernel.name(), node.origin.name));
        let forms: Vec<(DType, Vec<usize>)> = node
            .outputs
            .iter()
            .map(|&b| (self.program.buffer(b).dtype, self.program.buffer(b).sizes.clone()))
            .collect();
        let made = self.results(node, &forms)?;
        for ((&buffer, (dtype, sizes)), value) in node.outputs.iter().zip(forms).zip(made) {
            let value = expr::store(&mut self.w, &value, dtype);
            let mut value = self.w.reshape(&value, &sizes);
            if self.program.materialized.contains(&buffer) {
                value = self.w.materialize(&value, &self.materialize);
            }
            self.values.insert(buffer, value);
        }
        Ok(())
    }

    fn results(&mut self, node: &KernelNode, forms: &[(DType, Vec<usize>)]) -> Result<Vec<Value>> {
        let (dtype, sizes) = &forms[0];
        Ok(match &node.kernel {
            Kernel::Map(body) => {
                let operands = self.all(&body.operands);
                let stored: Vec<DType> = forms.iter().map(|(dtype, _)| *dtype).collect();
                let float = narrow::float_of(&body.expr, &operands, &stored);
                expr::write(&mut self.w, &body.sizes, &operands, &body.expr, float)
            }
            Kernel::Reduce { body, reduced, kinds } => {
                let dims: Vec<usize> = (0..reduced.len()).filter(|&d| reduced[d]).collect();
                let operands = self.all(&body.operands);
                let values = expr::write(&mut self.w, &body.sizes, &operands, &body.expr, DType::F32);
                let mut results = Vec::new();
                for (kind, x) in kinds.iter().zip(&values) {
                    let dtype = forms[results.len()].0;
                    results.extend(reduce::write(&mut self.w, *kind, x, &dims, dtype));
                }
                results
            }
            Kernel::Contract { kind, lhs, rhs, epilogue } => {
                let (lhs, rhs) = (self.see(lhs), self.see(rhs));
                let y = self.contract(kind, &lhs, &rhs, *dtype, sizes);
                match epilogue {
                    None => vec![y],
                    Some(e) => {
                        let mut operands = vec![y];
                        operands.extend(self.all(&e.operands));
                        expr::write(&mut self.w, sizes, &operands, &e.expr, DType::F32)
                    }
                }
            }
            Kernel::Pool { kind, pool, inputs } => {
                let inputs = self.all(inputs);
                if inputs[0].is_empty() || sizes.contains(&0) {
                    return Ok(forms.iter().map(|(d, s)| self.w.splat(0.0, *d, s)).collect());
                }
                pool::write(&mut self.w, *kind, pool, &inputs)?
            }
            Kernel::Copy(src) => vec![self.see(src)],
            Kernel::Pad { src, low, high, interior } => {
                let src = self.see(src);
                let around: Vec<[i64; 2]> =
                    low.iter().zip(high).map(|(&l, &h)| [l as i64, h as i64]).collect();
                vec![self.w.pad(&src, 0.0, &around, interior)]
            }
            Kernel::Concat { parts, axis } => {
                let parts = self.all(parts);
                let attribute = format!("dimension = {axis} : i64");
                let all: Vec<&Value> = parts.iter().collect();
                vec![self.w.op("concatenate", &all, &attribute, *dtype, sizes)]
            }
            Kernel::Gather { kind, gather, rows, indices } => {
                let (table, indices) = (self.see(rows), self.see(indices));
                let (found, bad) = rows::lookup(&mut self.w, *kind, gather, &table, &indices);
                let checked = Checked { origin: node.origin.clone(), kind: *kind, rows: gather.rows };
                self.bad.extend(bad.map(|bad| (checked, bad)));
                vec![found]
            }
            Kernel::Cumsum { cumsum, input } => {
                let input = self.see(input);
                vec![rows::cumulate(&mut self.w, cumsum, &input)]
            }
            Kernel::Argsort { argsort, input } => {
                let input = self.see(input);
                vec![rows::order(&mut self.w, argsort, &input)]
            }
            Kernel::Random { stream, first, .. } => {
                let key = self.key.clone().expect("a program that draws is given its key");
                let len = kir::elements(sizes);
                let first = match self.firsts.get(stream) {
                    Some(given) => First::Given(given.clone()),
                    None => First::Known(*first),
                };
                vec![random::uniform(&mut self.w, &key, stream, &first, len, *dtype)]
            }
            Kernel::AllReduce { input, .. } => {
                let input = self.see(input);
                vec![towers::all_reduce(&mut self.w, "add", &input, self.spmd.towers.len())]
            }
            Kernel::Custom { .. } => {
                return Err(Error::new(ErrorKind::Unsupported, "this operation has no XLA form")
                    .note("a kernel of one's own runs on the CPU engine alone: use a device cpu:N"));
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

    /// Ends with the next values of variables, the fetches and the report.
    fn run(mut self) -> Module {
        let program = self.program;
        let mut finite = self.w.splat(1.0, DType::Bool, &[]);
        self.w.comment("check");
        // Each value to check, and whether it may be infinite.
        let fed = self.arguments.iter().filter(|(_, v)| v.element.is_float()).filter_map(|(a, v)| match a {
            Argument::Feed(i) => Some((v.clone(), program.infinite.contains(i))),
            _ => None,
        });
        let mut looked_at: Vec<(Value, bool)> = fed.collect();
        looked_at.extend(program.finite.iter().map(|b| (self.values[b].clone(), false)));
        let varying = towers::varying(self.spmd);
        let count = self.spmd.towers.len();
        let mut next = Vec::new();
        for u in &program.updates {
            let mut new = self.see(&u.value);
            if varying.contains(&u.value.buffer) {
                new = towers::of_the_first(&mut self.w, &new, count);
            }
            if u.finite && new.element.is_float() {
                looked_at.push((new.clone(), false));
            }
            next.push(new);
        }
        for (value, infinite) in &looked_at {
            let fine = match infinite {
                true => reduce::no_nan(&mut self.w, value),
                false => reduce::all_finite(&mut self.w, value),
            };
            finite = self.w.like("and", &[&finite, &fine]);
        }
        let ok = self.without_bad_indices(&finite);
        let ok = match &self.prior_steps_ok {
            None => ok,
            Some(well) => {
                let agreed = towers::all_agree(&mut self.w, &ok, count);
                self.w.like("and", &[&agreed, well])
            }
        };
        let mut results = Vec::new();
        for (u, new) in program.updates.iter().zip(&next) {
            let is_it = |(a, _): &&(Argument, Value)| matches!(a, Argument::Variable(v) if *v == u.variable);
            let old =
                self.arguments.iter().find(is_it).expect("variables that are updated come in").1.clone();
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
        results.extend(self.all(&program.fetches));
        results.push(self.report(&finite));
        results.extend(self.prior_steps_ok.is_some().then_some(ok));
        self.finish(updated, program.fetches.len(), results, Vec::new())
    }

    /// Ends with whether each result is finite, and the report.
    fn search(mut self) -> Module {
        let mut searched = Vec::new();
        let mut flags = Vec::new();
        for node in &self.program.kernels {
            for b in node.outputs.iter().filter(|b| self.program.buffer(**b).dtype.is_float()) {
                let fine = reduce::all_finite(&mut self.w, &self.values[b]);
                flags.push(self.w.reshape(&fine, &[1]));
                searched.push(node.origin.clone());
            }
        }
        let all: Vec<&Value> = flags.iter().collect();
        let flags = match all.len() {
            0 => self.w.splat(1.0, DType::Bool, &[0]),
            n => self.w.op("concatenate", &all, "dimension = 0 : i64", DType::Bool, &[n]),
        };
        let yes = self.w.splat(1.0, DType::Bool, &[]);
        let report = self.report(&yes);
        self.finish(Vec::new(), 0, vec![flags, report], searched)
    }

    /// Whether it is so, and no number of a lookup is bad.
    fn without_bad_indices(&mut self, so: &Value) -> Value {
        let mut ok = so.clone();
        for (_, bad) in &self.bad {
            let never = self.w.integer(i64::MAX as i128, DType::I64, &[]);
            let fine = self.w.compare("EQ", &bad.place, &never);
            ok = self.w.like("and", &[&ok, &fine]);
        }
        ok
    }

    fn report(&mut self, finite: &Value) -> Value {
        let finite = self.w.convert(finite, DType::I64);
        let mut numbers = vec![finite];
        numbers.extend(self.bad.iter().flat_map(|(_, bad)| [bad.place.clone(), bad.index.clone()]));
        let numbers: Vec<Value> = numbers.iter().map(|n| self.w.reshape(n, &[1])).collect();
        let all: Vec<&Value> = numbers.iter().collect();
        self.w.op("concatenate", &all, "dimension = 0 : i64", DType::I64, &[all.len()])
    }

    fn finish(
        mut self,
        updated: Vec<usize>,
        fetches: usize,
        results: Vec<Value>,
        searched: Vec<Origin>,
    ) -> Module {
        self.w.give_back(&results);
        let mut text = String::from("module @tensorpack {\n  func.func public @main(");
        for (i, (argument, value)) in self.arguments.iter().enumerate() {
            let alias = match argument {
                // Its memory becomes that of its next value.
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
            lookups: self.bad.into_iter().map(|(checked, _)| checked).collect(),
            searched,
        }
    }
}
