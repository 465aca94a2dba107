//! Runs one tower's plan on its memory and threads.

use super::compiled_kernel::{Memory, Participant};
use super::interval::Bound;
use super::memory::{Block, padded};
use super::overflow::{Known, Measured, Room, Source, Value};
use super::packed_filters::PackedFilters;
use super::placement::{Base, Loc};
use super::plan::{Plan, SharedAt, Step};
use super::variables::Variables;
use crate::runtime::KernelProgress;
use crate::runtime::executor::{Feed, KernelTime, RunInfo};
use crate::runtime::value_errors::Diagnosis;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tensorpack_kernels::{Isa, Team};
use tensorpack_tensor::{Error, ErrorKind, Result};
use tensorpack_timeline::{self as timeline, Label, Name};

/// The working memory of one tower.
#[derive(Default)]
pub(super) struct TowerMemory {
    arena: Option<Block>,
    scratch: Vec<Block>,
    scratch_bytes: usize,
    /// Scratch memory for trial runs of updates, allocated on first use.
    trial: Option<Block>,
}

impl TowerMemory {
    /// Returns the number of additional bytes that a plan needs with this many threads.
    pub(super) fn missing(&self, plan: &Plan, members: usize) -> usize {
        let arena = plan.arena_bytes.saturating_sub(self.arena_bytes());
        let (each, members) = self.scratch_for(plan, members);
        let scratch = each.saturating_mul(members);
        arena.saturating_add(scratch.saturating_sub(self.scratch_bytes.saturating_mul(self.scratch.len())))
    }

    /// Returns the scratch bytes per thread and the number of threads. Neither shrinks, because
    /// other programs rely on them.
    fn scratch_for(&self, plan: &Plan, members: usize) -> (usize, usize) {
        (padded(plan.scratch_bytes).max(self.scratch_bytes), members.max(self.scratch.len()))
    }

    /// Grows the memory to fit a plan. Earlier programs keep using the memory, so nothing is freed
    /// before its replacement is allocated: an error leaves everything unchanged. New memory has no
    /// pages until it is written, so both together take no more than the larger one.
    pub(super) fn make_room(&mut self, plan: &Plan, members: usize) -> Result<()> {
        if plan.arena_bytes > self.arena_bytes() || self.arena.is_none() {
            self.arena = Some(Block::zeroed(plan.arena_bytes)?);
        }
        let (each, members) = self.scratch_for(plan, members);
        if each > self.scratch_bytes || members > self.scratch.len() {
            self.scratch = (0..members).map(|_| Block::zeroed(each)).collect::<Result<_>>()?;
            self.scratch_bytes = each;
        }
        Ok(())
    }

    /// Returns the size of the arena in bytes.
    pub(super) fn arena_bytes(&self) -> usize {
        self.arena.as_ref().map_or(0, Block::len)
    }

    /// Allocates room for the next values of any fused update of a plan.
    pub(super) fn make_trial_room(&mut self, plan: &Plan) -> Result<()> {
        let bytes = plan.trial_bytes();
        if bytes > self.trial.as_ref().map_or(0, Block::len) {
            // The old block stays until the new one exists: a failed allocation must not leave
            // none.
            self.trial = Some(Block::zeroed(bytes)?);
        }
        Ok(())
    }

    fn arena(&self) -> *mut u8 {
        self.arena.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr)
    }
}

/// The resources that a tower's plan runs on.
pub(super) struct TowerCx<'a> {
    pub(super) team: &'a mut Team,
    pub(super) memory: &'a TowerMemory,
    pub(super) isa: Isa,
    pub(super) participant: Participant<'a>,
    pub(super) at: Option<&'a KernelProgress>,
    /// The number of the tower, for timelines.
    pub(super) tower: usize,
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    runs: u64,
    seconds: f64,
    best: f64,
}

/// Passes over at most this many elements record the extremes of their outputs in every run.
const SMALL_UPDATE: usize = 4096;

/// A part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Steps that read no variable, at most a snapshot.
    Apart,
    Compute,
    /// Updates that may overflow, with scratch memory as their output.
    Trial,
    Commit,
}

impl Phase {
    /// Returns what timelines call it.
    fn name(self) -> &'static str {
        match self {
            Phase::Apart => "compute on a snapshot",
            Phase::Compute => "compute",
            Phase::Trial => "trial of the update",
            Phase::Commit => "update",
        }
    }
}

/// A tower's plan with tables for the pointers of one run, kept so that no run allocates.
pub(super) struct TowerRun {
    pub(super) plan: Plan,
    pointers: Pointers,
    times: Vec<Tally>,
    /// The names of the steps in timelines, once one was recorded.
    names: OnceLock<Vec<Arc<str>>>,
    /// The extremes of the run's results.
    measured: Vec<Measured>,
    /// Whether each of the plan's proofs holds in this run.
    proven: Vec<bool>,
    /// Bounds on the outputs of all fused updates, in order.
    next: Vec<Bound>,
    room: Room,
}

/// The pointers of one run.
#[derive(Default)]
struct Pointers {
    /// Those that each step reads, step after step.
    reads: Vec<*const u8>,
    /// Those that each step writes, step after step.
    writes: Vec<*mut u8>,
    /// The scratch memory of each member.
    scratch: Vec<*mut u8>,
    /// The plan's packed filters, and whether each is packed already.
    filters: Vec<(*mut u8, bool)>,
}

// SAFETY: `TowerRun::resolve` writes the pointers at the beginning of every run, before they are
// used, under the engine's lock; those into variables are used while it is this engine's turn with
// them (`SharedVariables::take`).
unsafe impl Send for Pointers {}

impl Plan {
    /// Returns the address of a location in this run.
    pub(super) fn pointer(
        &self,
        loc: &Loc,
        memory: &TowerMemory,
        variables: &Variables,
        snapshot: &Variables,
        feeds: &[Feed<'_>],
    ) -> *mut u8 {
        let base = match loc.base {
            Base::Arena => memory.arena(),
            Base::Slab(i) => variables.slab(i),
            Base::Snapshot(i) => snapshot.slab(i),
            // Feeds and constants are never written: no step has one among its outputs.
            Base::Feed(i) => feeds[i].as_bytes().as_ptr().cast_mut(),
            Base::Constant(i) => self.constants[i].as_bytes().as_ptr().cast_mut(),
        };
        base.wrapping_add(loc.offset)
    }
}

impl TowerRun {
    pub(super) fn new(plan: Plan, profile: bool) -> TowerRun {
        let idle = Tally { runs: 0, seconds: 0.0, best: f64::INFINITY };
        let times = if profile { vec![idle; plan.steps.len()] } else { Vec::new() };
        TowerRun {
            pointers: Pointers::default(),
            times,
            names: OnceLock::new(),
            measured: (0..plan.measured).map(|_| Measured::default()).collect(),
            proven: vec![false; plan.proofs.len()],
            next: vec![None; plan.proofs.iter().map(|p| p.outputs.len()).sum()],
            room: Room::new(&plan.proofs),
            plan,
        }
    }

    /// Fills the tables with the pointers of this run.
    pub(super) fn resolve(
        &mut self,
        memory: &TowerMemory,
        variables: &Variables,
        snapshot: &Variables,
        packed: &PackedFilters,
        feeds: &[Feed<'_>],
    ) {
        let Pointers { reads, writes, scratch, filters } = &mut self.pointers;
        reads.clear();
        writes.clear();
        for step in &self.plan.steps {
            let pointer = |loc: &Loc| self.plan.pointer(loc, memory, variables, snapshot, feeds);
            reads.extend(step.reads.iter().map(|loc| pointer(loc).cast_const()));
            writes.extend(step.writes.iter().map(pointer));
        }
        filters.clear();
        filters.extend(self.plan.filters.iter().map(|filter| packed.find(filter, variables)));
        scratch.clear();
        scratch.extend(memory.scratch.iter().map(Block::as_ptr));
        self.measured.iter().for_each(Measured::reset);
    }

    /// Returns whether all values that the run is about to write to variables are proven finite.
    pub(super) fn prove(&mut self, variables: &Variables, feeds: &[Feed<'_>], isa: Isa) -> bool {
        let known = Known { results: &self.measured, variables: &variables.known, feeds, isa };
        let mut next = self.next.as_mut_slice();
        for (proven, proof) in self.proven.iter_mut().zip(&self.plan.proofs) {
            let (own, rest) = next.split_at_mut(proof.outputs.len());
            *proven = proof.holds(known, &mut self.room, own);
            next = rest;
        }
        self.proven.iter().all(|p| *p) && !self.plan.assigns_infinity
    }

    /// Measures the variables that unproven fused updates read and whose bounds come from earlier
    /// proofs.
    /// Returns whether there were any.
    pub(super) fn measure_variables(&self, variables: &mut Variables) -> bool {
        let mut any = false;
        let unproven = self.plan.proofs.iter().zip(&self.proven).filter(|(_, proven)| !**proven);
        for source in unproven.flat_map(|(proof, _)| &proof.operands).flat_map(|(_, sources)| sources) {
            if let Source::Variable(index) = *source
                && variables.known[index].proven
            {
                variables.measure(index);
                any = true;
            }
        }
        any
    }

    /// Returns whether a fused update records the extremes of its outputs: if it is small, or if no
    /// proof bounds them.
    fn measures(&self, update: usize) -> bool {
        let elements = self.plan.steps[self.plan.commit_from + update].outputs[0].1;
        elements <= SMALL_UPDATE || !self.proven[update]
    }

    /// Resets the extremes that fused updates will record.
    pub(super) fn before_commit(&self, variables: &Variables) {
        for update in (0..self.proven.len()).filter(|&update| self.measures(update)) {
            let step = &self.plan.steps[self.plan.commit_from + update];
            step.checked.iter().flatten().for_each(|c| variables.measured[c.slot].reset());
        }
    }

    /// Updates what is known of the variables that were written.
    pub(super) fn after_commit(&self, variables: &mut Variables, feeds: &[Feed<'_>], isa: Isa) {
        let mut next = self.next.iter();
        for update in 0..self.proven.len() {
            let measures = self.measures(update);
            for checked in &self.plan.steps[self.plan.commit_from + update].checked {
                let bound = next.next().copied().flatten();
                for c in checked {
                    match measures {
                        true => variables.take_measured(c.slot),
                        false => variables.known[c.slot] = Value { bound, proven: true },
                    }
                }
            }
        }
        for copied in &self.plan.copied {
            let known = Known { results: &self.measured, variables: &variables.known, feeds, isa };
            let bound = copied.source.bound(copied.dtype, known);
            variables.known[copied.variable] = Value { bound, proven: false };
        }
    }

    /// Runs one step, whose pointers start at `at` in the tables.
    fn step(
        &mut self,
        i: usize,
        at: &mut Cursor,
        cx: &mut TowerCx<'_>,
        run: &RunInfo,
        look: Look<'_>,
    ) -> Result<()> {
        let step = &self.plan.steps[i];
        let (checked, measured) = match look.at {
            At::Results => (step.checked.as_slice(), Some(self.measured.as_slice())),
            At::Variables(measured) => (step.checked.as_slice(), Some(measured)),
            At::Elements => (step.checked.as_slice(), None),
            At::Nothing => (&[][..], None),
        };
        let finite = look.finite;
        let (shared, is_packed) = match step.shared {
            SharedAt::Nowhere => (cx.memory.arena(), false),
            SharedAt::Arena(offset) => (cx.memory.arena().wrapping_add(offset), false),
            SharedAt::Filter(i) => self.pointers.filters[i],
        };
        let memory = Memory {
            reads: &self.pointers.reads[at.read..at.read + step.reads.len()],
            writes: &self.pointers.writes[at.write..at.write + step.writes.len()],
            outputs: &step.outputs,
            checked,
            measured,
            shared,
            is_packed,
            scratch: &self.pointers.scratch,
            scratch_bytes: cx.memory.scratch_bytes,
            finite,
            isa: cx.isa,
            seed: run.seed,
            draw: run.draw,
            participant: cx.participant,
        };
        at.skip(step);
        cx.participant.communicator.at_step(cx.participant.tower, i);
        if let Some(progress) = cx.at {
            progress.set(Some(&step.origin));
        }
        let span = timeline::span(|| Label { category: "kernel", name: Name::Shared(self.name(i)) });
        let started = (!self.times.is_empty()).then(Instant::now);
        // SAFETY: `kir::validate` has checked that views stay inside their buffers and fit the
        // kernel. `Placement` gave every buffer aligned memory of its own for its lifetime, except
        // where a map writes in place (`reuse_in_place`). `resolve` has filled the tables for this
        // run, and `make_room` has made the memory large enough. The engine's lock excludes other
        // threads, and steps that access variables run only while their tower has the turn.
        let ran = catch_unwind(AssertUnwindSafe(|| unsafe { step.kernel.run(cx.team, &memory) }));
        drop(span);
        let here = |e: Error| e.within(&step.origin.name).at(step.origin.site);
        ran.unwrap_or_else(|panic| resume_unwind(Box::new(here(panicked(&*panic))))).map_err(here)?;
        if let Some(started) = started {
            let (tally, seconds) = (&mut self.times[i], started.elapsed().as_secs_f64());
            tally.runs += 1;
            tally.seconds += seconds;
            tally.best = tally.best.min(seconds);
        }
        Ok(())
    }

    pub(super) fn run(
        &mut self,
        cx: &mut TowerCx<'_>,
        run: &RunInfo,
        finite: &AtomicBool,
        phase: Phase,
        variables: &[Measured],
    ) -> Result<()> {
        let name = || Name::Part(format!("tower {}", cx.tower).into(), phase.name());
        let _span = timeline::span(|| Label { category: "tower", name: name() });
        let Plan { live_from, commit_from, .. } = self.plan;
        let steps = match phase {
            Phase::Apart => 0..live_from,
            Phase::Compute => live_from..commit_from,
            Phase::Trial => return self.trial(cx, run, finite),
            Phase::Commit => commit_from..self.plan.steps.len(),
        };
        let mut at = Cursor::default();
        self.plan.steps[..steps.start].iter().for_each(|step| at.skip(step));
        for i in steps {
            let look = match i.checked_sub(commit_from) {
                None => At::Results,
                Some(update) if update < self.proven.len() && self.measures(update) => {
                    At::Variables(variables)
                }
                Some(_) => At::Nothing,
            };
            self.step(i, &mut at, cx, run, Look { finite, at: look })?;
        }
        Ok(())
    }

    /// Runs the unproven fused updates with scratch memory as their outputs. All read the start
    /// values of variables, so their order does not matter.
    fn trial(&mut self, cx: &mut TowerCx<'_>, run: &RunInfo, finite: &AtomicBool) -> Result<()> {
        if self.plan.assigns_infinity {
            finite.store(false, Ordering::Relaxed);
        }
        let mut at = Cursor::default();
        self.plan.steps[..self.plan.commit_from].iter().for_each(|step| at.skip(step));
        let room = cx.memory.trial.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr);
        for update in 0..self.proven.len() {
            let i = self.plan.commit_from + update;
            if self.proven[update] {
                at.skip(&self.plan.steps[i]);
                continue;
            }
            let (first, count) = (at.write, self.plan.steps[i].writes.len());
            let kept = self.pointers.writes[first..first + count].to_vec();
            let mut offset = 0;
            for k in 0..count {
                let (dtype, n) = self.plan.steps[i].outputs[k];
                self.pointers.writes[first + k] = room.wrapping_add(offset);
                offset += padded(dtype.size() * n);
            }
            self.step(i, &mut at, cx, run, Look { finite, at: At::Elements })?;
            self.pointers.writes[first..first + count].copy_from_slice(&kept);
        }
        Ok(())
    }

    /// Returns the name of a step in timelines: the kind of kernel and what it was lowered from.
    fn name(&self, step: usize) -> Arc<str> {
        let names =
            self.names.get_or_init(|| self.plan.steps.iter().map(|s| kernel_name(s).into()).collect());
        names[step].clone()
    }

    /// Returns the time spent in each kernel, if it is measured.
    pub(super) fn profile(&self) -> impl Iterator<Item = KernelTime> {
        self.plan.steps.iter().zip(&self.times).map(|(step, t)| KernelTime {
            name: kernel_name(step),
            runs: t.runs,
            seconds: t.seconds,
            best_seconds: t.best,
            flops: step.kernel.flops(),
            bytes: step.bytes,
        })
    }

    /// Runs step by step and checks every result. Returns the error of the first bad one, and the
    /// number of collectives up to it. Continues to the end after finding one, so that the other
    /// towers do not wait for this one.
    pub(super) fn find_bad(
        &mut self,
        cx: &mut TowerCx<'_>,
        run: &RunInfo,
        diagnosis: &Diagnosis,
    ) -> Result<Option<(usize, Error)>> {
        let (ignored, mut at) = (AtomicBool::new(true), Cursor::default());
        let look = Look { finite: &ignored, at: At::Nothing };
        let (mut found, mut collectives) = (None, 0);
        for i in 0..self.plan.commit_from {
            let first = at.write;
            self.step(i, &mut at, cx, run, look)?;
            let step = &self.plan.steps[i];
            collectives += usize::from(step.kernel.is_collective());
            let bad = step.outputs.iter().enumerate().any(|(k, &(dtype, n))| {
                // SAFETY: the step has just written n elements there, and `cx.isa` is one of this
                // CPU's, as for the step.
                unsafe { !tensorpack_kernels::all_finite(cx.isa, dtype, self.pointers.writes[first + k], n) }
            });
            if bad && found.is_none() {
                found = diagnosis.not_finite(&step.origin).map(|e| (collectives, e));
            }
        }
        Ok(found)
    }
}

fn kernel_name(step: &Step) -> String {
    format!("{} {}", step.kernel.name(), step.origin.name)
}

/// The treatment of the extremes of checked elements in a step.
#[derive(Clone, Copy)]
struct Look<'a> {
    /// Cleared if an element that must be finite is not.
    finite: &'a AtomicBool,
    at: At<'a>,
}

/// Where the extremes of checked elements are recorded.
#[derive(Clone, Copy)]
enum At<'a> {
    /// In the slots of the run's results.
    Results,
    /// In the slots of variables.
    Variables(&'a [Measured]),
    /// Nowhere: elements are only checked.
    Elements,
    /// Nowhere, and nothing is checked.
    Nothing,
}

/// Returns the error of a kernel that panicked.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    Error::new(ErrorKind::Engine, format!("a kernel panicked: {}", text.as_deref().unwrap_or("no message")))
}

/// A position in the pointer tables.
#[derive(Default)]
struct Cursor {
    read: usize,
    write: usize,
}

impl Cursor {
    fn skip(&mut self, step: &Step) {
        self.read += step.reads.len();
        self.write += step.writes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::super::pipeline::Compilation;
    use super::*;
    use crate::kir::Program;

    /// An empty plan that needs this much memory.
    fn plan(arena_bytes: usize, scratch_bytes: usize) -> Plan {
        let empty = Compilation::new(Program::default(), false, 1, None);
        let mut plan = Plan::new(empty, &Variables::default(), String::new(), &[]).unwrap();
        (plan.arena_bytes, plan.scratch_bytes) = (arena_bytes, scratch_bytes);
        plan
    }

    #[test]
    fn the_arena_stays_when_a_larger_one_cannot_be_allocated() {
        let mut memory = TowerMemory::default();
        memory.make_room(&plan(4096, 64), 2).unwrap();
        let there = memory.arena();
        for vast in [plan(1 << 60, 64), plan(usize::MAX - 64, 64), plan(4096, 1 << 60)] {
            assert_eq!(memory.make_room(&vast, 2).unwrap_err().kind(), ErrorKind::Memory);
            assert_eq!(memory.arena(), there);
            assert_eq!((memory.arena_bytes(), memory.scratch.len(), memory.scratch_bytes), (4096, 2, 64));
        }
    }

    #[test]
    fn scratch_is_never_for_fewer_members_than_before() {
        let mut memory = TowerMemory::default();
        memory.make_room(&plan(64, 64), 4).unwrap();
        // Larger, for the members of a smaller team.
        assert_eq!(memory.missing(&plan(64, 256), 2), 4 * 256 - 4 * 64);
        memory.make_room(&plan(64, 256), 2).unwrap();
        assert_eq!((memory.scratch.len(), memory.scratch_bytes), (4, 256));
        // Smaller, for the members of a larger one.
        assert_eq!(memory.missing(&plan(64, 64), 5), 256);
        memory.make_room(&plan(64, 64), 5).unwrap();
        assert_eq!((memory.scratch.len(), memory.scratch_bytes), (5, 256));
        assert_eq!(memory.missing(&plan(64, 256), 5), 0);
    }
}
