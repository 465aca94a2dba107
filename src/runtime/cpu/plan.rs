//! The plan: every kernel made, every buffer placed, before anything runs.

use super::arena::{self, Lifetime};
use super::commit::Pass;
use super::interval::Bound;
use super::memory::padded;
use super::overflow::{self, Output, Proof, Source};
use super::panels;
use super::pipeline::Compilation;
use super::snapshot;
use super::variables::Variables;
use super::work::Work;
use crate::kir::{self, BufferId, BufferKind, Kernel, KernelNode, MapBody, Origin, View};
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use tensorpack_kernels::{Isa, extremes};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Where something begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Arena,
    Feed(usize),
    Slab(usize),
    /// The tower's own copy of a slab.
    Snapshot(usize),
    Constant(usize),
}

/// A place in memory: a base and bytes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loc {
    pub(super) base: Base,
    pub(super) offset: usize,
}

/// Elements of an output that are looked at when they are written.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) elements: Range<usize>,
    /// Where their extremes go: the slot of a result or, in a commit, the index of a variable.
    pub(super) slot: usize,
    /// Whether they must be finite for variables to change.
    pub(super) finite: bool,
}

/// A variable that gets a copy of what was computed before.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) variable: usize,
    pub(super) dtype: DType,
    /// What bounds it.
    pub(super) source: Source,
}

/// One kernel, ready to run.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) work: Work,
    pub(super) reads: Vec<Loc>,
    pub(super) writes: Vec<Loc>,
    /// Type and number of elements of each output.
    pub(super) forms: Vec<(DType, usize)>,
    /// By output, which elements are checked, in order; may be left out if none are.
    pub(super) checked: Vec<Vec<Checked>>,
    /// Room shared by all threads while the step runs.
    pub(super) shared: Option<usize>,
    pub(super) origin: Arc<Origin>,
    pub(super) bytes: f64,
}

/// A value the caller gets.
#[derive(Debug)]
pub(super) struct FetchAt {
    pub(super) loc: Loc,
    pub(super) dtype: DType,
    pub(super) sizes: Vec<usize>,
}

/// All of a program, ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Steps before this one read no variable, at most a snapshot.
    pub(super) live_from: usize,
    /// Steps from here on change variables.
    pub(super) commit_from: usize,
    /// For each of these, a proof to try that what it writes is finite.
    pub(super) proofs: Vec<Proof>,
    /// Variables that steps behind those copy to.
    pub(super) copied: Vec<Copied>,
    /// Whether a variable that must be finite is assigned a constant that is not.
    pub(super) assigns_infinity: bool,
    /// How many results have their extremes found.
    pub(super) measured: usize,
    /// Variables of which a snapshot is read.
    pub(super) snapshots: Vec<usize>,
    pub(super) fetches: Vec<FetchAt>,
    pub(super) constants: Vec<HostTensor>,
    pub(super) arena_bytes: usize,
    pub(super) scratch_bytes: usize,
    /// The largest sum of bytes that live at once, whatever the arena manages.
    live_bytes: usize,
    text: String,
}

impl Plan {
    /// Places all buffers of a compiled program and makes its kernels. `passes` is the dump of the pipeline, if any.
    pub(super) fn new(compilation: Compilation, variables: &Variables, passes: String) -> Result<Plan> {
        let mut plan = Planner::new(compilation, variables).plan()?;
        plan.text.insert_str(0, &passes);
        Ok(plan)
    }

    /// The bytes that a pass over variables writes, at most.
    pub(super) fn trial_bytes(&self) -> usize {
        let bytes = |step: &Step| step.forms.iter().map(|(d, n)| padded(d.size() * n)).sum();
        let passes = self.commit_from..self.commit_from + self.proofs.len();
        self.steps[passes].iter().map(bytes).max().unwrap_or(0)
    }

    /// Whether a run leaves any variable other than it was.
    pub(super) fn changes_variables(&self) -> bool {
        self.commit_from < self.steps.len()
    }

    pub(super) fn text(&self) -> String {
        format!("{}arena {} bytes, live at once {} bytes\n", self.text, self.arena_bytes, self.live_bytes)
    }
}

struct Planner<'a> {
    compilation: Compilation,
    snapshots: Vec<usize>,
    variables: &'a Variables,
    /// Buffers packed together so that a pass over a slab reads them in one go: buffer to (pack, offset).
    packed: HashMap<BufferId, (usize, usize)>,
    pack_bytes: Vec<usize>,
    /// Buffers that lie where another did: the other's memory is reused.
    reuses: HashMap<BufferId, BufferId>,
}

impl<'a> Planner<'a> {
    fn new(compilation: Compilation, variables: &'a Variables) -> Planner<'a> {
        Planner {
            snapshots: snapshot::snapshots(&compilation.program, &compilation.commit),
            compilation,
            variables,
            packed: HashMap::new(),
            pack_bytes: Vec::new(),
            reuses: HashMap::new(),
        }
    }

    /// Packs what a pass over several variables reads beside them (gradients) in the slab's own
    /// form. Each such buffer has one place: `commit::form` let no other operand of any pass have
    /// it.
    fn pack(&mut self) {
        for pass in self.compilation.commit.passes.iter().filter(|p| p.members.len() > 1) {
            let first = &pass.members[0];
            for (k, view) in first.body.operands.iter().enumerate() {
                if pass.scalar[k] || !self.compilation.program.is_temp(view.buffer) {
                    continue;
                }
                let mut offset = 0;
                for m in &pass.members {
                    let b = m.body.operands[k].buffer;
                    self.packed.insert(b, (self.pack_bytes.len(), offset));
                    offset += padded(self.compilation.program.buffer(b).bytes());
                }
                self.pack_bytes.push(offset);
            }
        }
    }

    fn plan(mut self) -> Result<Plan> {
        self.pack();
        let compute = self.compilation.program.kernels.len();
        let fetch_time = compute;
        let commit_time = compute + 1;
        let lives = self.lifetimes(fetch_time, commit_time);
        self.reuse_in_place(&lives);

        // Items of the arena: packs, buffers with memory of their own, and what kernels share among threads.
        let mut items: Vec<Lifetime> =
            self.pack_bytes.iter().map(|&bytes| Lifetime { bytes, first: usize::MAX, last: 0 }).collect();
        let mut item_of: HashMap<BufferId, usize> = HashMap::new();
        let mut ids: Vec<BufferId> = lives.keys().copied().collect();
        ids.sort_unstable();
        for &b in &ids {
            let live = lives[&b];
            let root = self.root(b);
            let item = match self.packed.get(&b) {
                Some(&(pack, _)) => pack,
                None => *item_of.entry(root).or_insert_with(|| {
                    items.push(Lifetime { bytes: live.bytes, first: usize::MAX, last: 0 });
                    items.len() - 1
                }),
            };
            items[item].first = items[item].first.min(live.first);
            items[item].last = items[item].last.max(live.last);
            item_of.insert(b, item);
        }
        items.iter_mut().filter(|i| i.first == usize::MAX).for_each(|i| i.first = 0);
        let works: Vec<Work> = self
            .compilation
            .program
            .kernels
            .iter()
            .map(|n| Work::new(&self.compilation, n))
            .collect::<Result<_>>()?;
        let shared: Vec<Option<usize>> = works
            .iter()
            .enumerate()
            .map(|(i, w)| {
                let bytes = padded(w.shared_bytes());
                (bytes > 0).then(|| {
                    items.push(Lifetime { bytes, first: i, last: i });
                    items.len() - 1
                })
            })
            .collect();
        let (offsets, arena_bytes) = arena::place(&items);
        if arena_bytes > isize::MAX as usize {
            let why = "this program needs more memory than can be addressed";
            return Err(Error::new(ErrorKind::Memory, why));
        }
        let live_bytes = (0..=commit_time)
            .map(|t| {
                items
                    .iter()
                    .filter(|i| i.first <= t && t <= i.last)
                    .fold(0usize, |n, i| n.saturating_add(i.bytes))
            })
            .max()
            .unwrap_or(0);

        let mut constants = Vec::new();
        let mut locs: HashMap<BufferId, Loc> = HashMap::new();
        for (i, buffer) in self.compilation.program.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            let loc = match &buffer.kind {
                BufferKind::Feed(n) => Loc { base: Base::Feed(*n), offset: 0 },
                BufferKind::Variable(v) => {
                    let place = self.variables.place(*v);
                    Loc { base: Base::Slab(place.slab), offset: place.offset }
                }
                BufferKind::Snapshot(v) => {
                    let place = self.variables.place(*v);
                    Loc { base: Base::Snapshot(place.slab), offset: place.offset }
                }
                BufferKind::Constant(value) => {
                    constants.push(match self.compilation.panels.contains(&id) {
                        true => panels::packed(value)?,
                        false => value.clone(),
                    });
                    Loc { base: Base::Constant(constants.len() - 1), offset: 0 }
                }
                BufferKind::Temp => match item_of.get(&id) {
                    Some(&item) => {
                        let inside = self.packed.get(&id).map_or(0, |&(_, offset)| offset);
                        Loc { base: Base::Arena, offset: offsets[item] + inside }
                    }
                    None => continue,
                },
            };
            locs.insert(id, loc);
        }
        let slots = self.slots();
        let at = |v: &View| {
            let loc = locs[&v.buffer];
            Loc { offset: loc.offset + v.offset * v.dtype.size(), ..loc }
        };
        let mut text = String::new();
        let mut steps = Vec::new();
        for ((node, work), shared) in self.compilation.program.kernels.iter().zip(works).zip(shared) {
            let sharing = match work.shared_bytes() {
                0 => String::new(),
                bytes => format!(" sharing {} bytes", padded(bytes)),
            };
            let _ = writeln!(text, "{}{}{sharing}", self.describe(node), work.summary());
            let form = |&b: &BufferId| (self.compilation.program.buffer(b).dtype, self.len(b));
            let outputs = node.outputs.iter();
            let read: f64 = node.kernel.reads().iter().map(|v| seen_bytes(v)).sum();
            let written: f64 = node.outputs.iter().map(|&b| self.bytes(b) as f64).sum();
            steps.push(Step {
                reads: self.reads(node).iter().map(at).collect(),
                writes: outputs.clone().map(|b| locs[b]).collect(),
                forms: outputs.clone().map(form).collect(),
                checked: outputs.map(|b| self.whole(*b, &slots)).collect(),
                shared: shared.map(|item| offsets[item]),
                origin: node.origin.clone().into(),
                bytes: read + written,
                work,
            });
        }
        if !self.compilation.program.fetches.is_empty() {
            let _ = writeln!(text, "fetch {}", self.names(self.compilation.program.fetches.iter()));
        }
        let commit_from = steps.len();
        let mut proofs = Vec::new();
        for pass in &self.compilation.commit.passes {
            let step = self.pass_step(pass, &at);
            proofs.push(self.proof(pass, &slots));
            let names: Vec<String> = pass.members.iter().map(|m| format!("{:?}", m.variables)).collect();
            let read = pass.members.iter().flat_map(|m| &m.body.operands);
            let read = self.names(read.filter(|v| self.compilation.program.is_temp(v.buffer)));
            let _ = writeln!(text, "commit {}({read}) over variables {}", step.work.name(), names.join(" "));
            steps.push(step);
        }
        for (variable, value) in &self.compilation.commit.copies {
            let place = self.variables.place(*variable);
            let (bytes, n) = (2.0 * (value.len() * value.dtype.size()) as f64, value.len());
            let _ = writeln!(text, "commit copy({}) to variable {variable}", self.names([value].into_iter()));
            steps.push(Step {
                work: Work::copy(value),
                reads: vec![at(value)],
                writes: vec![Loc { base: Base::Slab(place.slab), offset: place.offset }],
                forms: vec![(value.dtype, n)],
                checked: Vec::new(),
                shared: None,
                origin: Arc::new(Origin {
                    name: "assign".into(),
                    site: tensorpack_tensor::Site { file: file!(), line: line!() },
                }),
                bytes,
            });
        }
        let fetches = self
            .compilation
            .program
            .fetches
            .iter()
            .map(|v| FetchAt { loc: at(v), dtype: v.dtype, sizes: v.sizes.clone() })
            .collect();
        let scratch_bytes = steps.iter().map(|s| s.work.scratch_bytes()).max().unwrap_or(0);
        Ok(Plan {
            steps,
            live_from: self.compilation.live_from,
            commit_from,
            proofs,
            copied: self
                .compilation
                .commit
                .copies
                .iter()
                .map(|(variable, v)| self.copied(*variable, v, &slots))
                .collect(),
            assigns_infinity: self.assigns_infinity(),
            measured: slots.len(),
            snapshots: self.snapshots,
            fetches,
            constants,
            arena_bytes,
            scratch_bytes,
            live_bytes,
            text,
        })
    }

    /// Returns the number of elements of a buffer as it is stored.
    fn len(&self, b: BufferId) -> usize {
        let buffer = self.compilation.program.buffer(b);
        if self.compilation.panels.contains(&b) { panels::len(buffer) } else { buffer.len() }
    }

    /// Returns the number of bytes of a buffer as it is stored.
    fn bytes(&self, b: BufferId) -> usize {
        self.len(b).saturating_mul(self.compilation.program.buffer(b).dtype.size())
    }

    /// What a kernel is handed to read: its views and, for a contraction, its own result before the epilogue's operands.
    fn reads(&self, node: &KernelNode) -> Vec<View> {
        let mut reads: Vec<View> = node.kernel.reads().into_iter().cloned().collect();
        if let Kernel::Contract { .. } = node.kernel {
            let own = node.outputs[0];
            let out = self.compilation.program.buffer(own);
            reads.insert(2, View::dense(own, out.dtype, &out.sizes));
        }
        reads
    }

    /// First and last use of every temporary that somebody needs.
    fn lifetimes(&self, fetch_time: usize, commit_time: usize) -> HashMap<BufferId, Lifetime> {
        let mut lives: HashMap<BufferId, Lifetime> = HashMap::new();
        let mut touch = |b: BufferId, t: usize| {
            if self.compilation.program.is_temp(b) {
                let bytes = padded(self.bytes(b).max(1));
                let live = lives.entry(b).or_insert(Lifetime { bytes, first: t, last: t });
                live.last = live.last.max(t);
            }
        };
        for (t, node) in self.compilation.program.kernels.iter().enumerate() {
            node.outputs.iter().for_each(|&b| touch(b, t));
            node.kernel.reads().iter().for_each(|v| touch(v.buffer, t));
        }
        self.compilation
            .program
            .fetches
            .iter()
            .chain(&self.compilation.program.costs)
            .for_each(|v| touch(v.buffer, fetch_time));
        let late =
            self.compilation.commit.passes.iter().flat_map(|p| &p.members).flat_map(|m| &m.body.operands);
        late.chain(self.compilation.commit.copies.iter().map(|(_, v)| v))
            .for_each(|v| touch(v.buffer, commit_time));
        lives
    }

    fn root(&self, b: BufferId) -> BufferId {
        self.reuses.get(&b).map_or(b, |&r| self.root(r))
    }

    /// A map's result may lie where an operand lay that nobody reads any more.
    ///
    /// Preconditions: the operand is a temporary that dies here, of as many elements of the same
    /// size, read whole and in order by one operand of the map (kernels read an element before they
    /// write it, but not its neighbours), given to no other result, and in no pack; nor is the
    /// result.
    fn reuse_in_place(&mut self, lives: &HashMap<BufferId, Lifetime>) {
        let mut given: Vec<BufferId> = Vec::new();
        for (t, node) in self.compilation.program.kernels.iter().enumerate() {
            let Kernel::Map(body) = &node.kernel else { continue };
            for &out in &node.outputs {
                let size = self.compilation.program.buffer(out).dtype.size();
                let fits = |v: &&View| {
                    self.compilation.program.is_temp(v.buffer)
                        && lives.get(&v.buffer).is_some_and(|l| l.last == t && l.bytes == lives[&out].bytes)
                        && v.is_whole(&body.sizes)
                        && v.dtype.size() == size
                        && !self.packed.contains_key(&v.buffer)
                        && !given.contains(&v.buffer)
                        // Read in another way too (shifted, say), it must stay until all of it was read.
                        && body.operands.iter().filter(|o| o.buffer == v.buffer).count() == 1
                };
                if self.packed.contains_key(&out) {
                    continue;
                }
                if let Some(v) = body.operands.iter().find(fits) {
                    given.push(v.buffer);
                    self.reuses.insert(out, v.buffer);
                }
            }
        }
    }

    /// Assigns a slot to every result whose extremes are recorded: stored results that must be
    /// finite, and floats that passes and copies read.
    fn slots(&self) -> HashMap<BufferId, usize> {
        let late =
            self.compilation.commit.passes.iter().flat_map(|p| &p.members).flat_map(|m| &m.body.operands);
        let consumed = late
            .chain(self.compilation.commit.copies.iter().map(|(_, v)| v))
            .chain(&self.compilation.program.costs);
        let consumed = consumed.map(|v| v.buffer).chain(self.compilation.program.finite.iter().copied());
        let mut slots = HashMap::new();
        for b in consumed.filter(|&b| {
            self.compilation.program.buffer(b).dtype.is_float() && self.compilation.program.is_temp(b)
        }) {
            let next = slots.len();
            slots.entry(b).or_insert(next);
        }
        slots
    }

    /// All elements of a result, if it has a slot.
    fn whole(&self, b: BufferId, slots: &HashMap<BufferId, usize>) -> Vec<Checked> {
        let elements = 0..self.compilation.program.buffer(b).len();
        slots.get(&b).map(|&slot| Checked { elements, slot, finite: true }).into_iter().collect()
    }

    /// Whether a variable's next value must be finite.
    fn must_be_finite(&self, variable: usize) -> bool {
        self.compilation.program.updates.iter().any(|u| u.variable == variable && u.finite)
    }

    /// Whether one that must be is assigned a constant that is not.
    fn assigns_infinity(&self) -> bool {
        self.compilation.commit.copies.iter().any(|(variable, value)| {
            match &self.compilation.program.buffer(value.buffer).kind {
                BufferKind::Constant(t) => {
                    t.dtype().is_float() && self.must_be_finite(*variable) && constant_bound(t).is_none()
                }
                _ => false,
            }
        })
    }

    /// What bounds the elements of a view.
    fn source(&self, v: &View, slots: &HashMap<BufferId, usize>) -> Source {
        let buffer = self.compilation.program.buffer(v.buffer);
        let single = buffer.len() == 1;
        match &buffer.kind {
            BufferKind::Variable(index) => Source::Variable(*index),
            BufferKind::Feed(i) => Source::Feed(*i),
            BufferKind::Constant(t) => Source::Always(constant_bound(t)),
            BufferKind::Snapshot(_) => Source::Always(None),
            BufferKind::Temp => match slots.get(&v.buffer) {
                Some(&slot) => Source::Result { slot, single },
                None => Source::Always(overflow::any_of(v.dtype)),
            },
        }
    }

    fn copied(&self, variable: usize, value: &View, slots: &HashMap<BufferId, usize>) -> Copied {
        Copied { variable, dtype: value.dtype, source: self.source(value, slots) }
    }

    /// How to prove that what a pass writes is finite.
    fn proof(&self, pass: &Pass, slots: &HashMap<BufferId, usize>) -> Proof {
        let first = &pass.members[0];
        let operand = |k: usize| {
            let sources = pass.members.iter().map(|m| self.source(&m.body.operands[k], slots));
            (first.body.operands[k].dtype, sources.collect())
        };
        let output = |k: usize| {
            let finite = pass.members.iter().any(|m| self.must_be_finite(m.variables[k]));
            Output { dtype: self.compilation.program.buffer(first.outputs[k]).dtype, finite }
        };
        Proof {
            expr: first.body.expr.clone(),
            sizes: first.body.sizes.clone(),
            operands: (0..first.body.operands.len()).map(operand).collect(),
            outputs: (0..first.outputs.len()).map(output).collect(),
        }
    }

    /// The elements of an output of a pass: those of its members, without the padding between them.
    fn members(&self, pass: &Pass, output: usize) -> Vec<Checked> {
        let mut checked = Vec::new();
        let mut from = 0;
        for m in &pass.members {
            let (buffer, slot) = (self.compilation.program.buffer(m.outputs[output]), m.variables[output]);
            let elements = from..from + buffer.len();
            checked.push(Checked { elements, slot, finite: self.must_be_finite(slot) });
            from += padded(buffer.bytes()) / buffer.dtype.size();
        }
        checked
    }

    fn pass_step(&self, pass: &Pass, at: &dyn Fn(&View) -> Loc) -> Step {
        let first = &pass.members[0];
        let body = match pass.members.len() {
            1 => first.body.clone(),
            _ => self.stretched(pass),
        };
        let n = kir::elements(&body.sizes);
        let writes = first.variables.iter().map(|&v| {
            let place = self.variables.place(v);
            Loc { base: Base::Slab(place.slab), offset: place.offset }
        });
        let dtypes: Vec<DType> =
            first.outputs.iter().map(|&b| self.compilation.program.buffer(b).dtype).collect();
        let read: f64 = body.operands.iter().map(seen_bytes).sum();
        let written: f64 = dtypes.iter().map(|d| (d.size() * n) as f64).sum();
        Step {
            reads: first.body.operands.iter().map(at).collect(),
            writes: writes.collect(),
            forms: dtypes.iter().map(|&d| (d, n)).collect(),
            checked: (0..dtypes.len()).map(|output| self.members(pass, output)).collect(),
            shared: None,
            origin: pass.origin.clone().into(),
            bytes: read + written,
            work: Work::map(&body, dtypes),
        }
    }

    /// The first member's map, over the elements of all members and the padding between them.
    fn stretched(&self, pass: &Pass) -> MapBody {
        let size = |b: BufferId| self.compilation.program.buffer(b).dtype.size();
        let bytes = |b: BufferId| self.compilation.program.buffer(b).bytes();
        let (first, last) = (&pass.members[0], &pass.members[pass.members.len() - 1]);
        let before: usize =
            pass.members[..pass.members.len() - 1].iter().map(|m| padded(bytes(m.outputs[0]))).sum();
        let n = before / size(first.outputs[0]) + self.compilation.program.buffer(last.outputs[0]).len();
        let operands = first.body.operands.iter().zip(&pass.scalar).map(|(v, &scalar)| View {
            sizes: vec![n],
            strides: vec![isize::from(!scalar)],
            ..v.clone()
        });
        MapBody { sizes: vec![n], operands: operands.collect(), expr: first.body.expr.clone() }
    }

    fn describe(&self, node: &KernelNode) -> String {
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .map(|&b| {
                let place = match self.reuses.get(&b) {
                    Some(r) => format!(" in place of %{}", r.0),
                    None => String::new(),
                };
                format!(
                    "%{} {}{:?}{place}",
                    b.0,
                    self.compilation.program.buffer(b).dtype,
                    self.compilation.program.buffer(b).sizes
                )
            })
            .collect();
        let reads = self.names(node.kernel.reads().into_iter());
        format!("{} = {}({reads}) // {}", outputs.join(", "), node.kernel.name(), node.origin.name)
    }

    /// What is read, by the names it has in the plan's text, each once.
    fn names<'v>(&self, views: impl Iterator<Item = &'v View>) -> String {
        let mut names: Vec<String> = Vec::new();
        for v in views {
            let name = match &self.compilation.program.buffer(v.buffer).kind {
                BufferKind::Temp => format!("%{}", v.buffer.0),
                BufferKind::Feed(i) => format!("feed{i}"),
                BufferKind::Variable(i) => format!("var{i}"),
                BufferKind::Snapshot(i) => format!("snap{i}"),
                BufferKind::Constant(_) => "const".into(),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }
}

/// Bounds of a constant's elements.
fn constant_bound(t: &HostTensor) -> Bound {
    if !t.dtype().is_float() {
        return overflow::any_of(t.dtype());
    }
    // SAFETY: the bytes are the tensor's elements.
    let of = unsafe { extremes(Isa::detect(), t.dtype(), t.as_bytes().as_ptr(), t.len()) };
    overflow::bound(of, t.dtype(), t.len() == 1)
}

/// The bytes a kernel really reads through a view: what is repeated is read once.
fn seen_bytes(v: &View) -> f64 {
    let dims = v.sizes.iter().zip(&v.strides).filter(|(_, s)| **s != 0);
    dims.map(|(&n, _)| n as f64).product::<f64>() * v.dtype.size() as f64
}
