//! One tower: its plan, and the memory and the threads that it runs on.

use super::memory::{Block, padded};
use super::plan::{Base, Loc, Plan, Step};
use super::variables::Variables;
use super::work::{Meeting, Memory};
use crate::runtime::executor::{Feed, KernelTime, RunInfo};
use crate::runtime::{Whereabouts, faults};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tensorpack_kernels::{Isa, Team};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The working memory of one tower.
#[derive(Default)]
pub(super) struct Lane {
    arena: Option<Block>,
    scratch: Vec<Block>,
    scratch_bytes: usize,
}

impl Lane {
    /// How many bytes more a plan takes, with so many threads.
    pub(super) fn missing(&self, plan: &Plan, members: usize) -> usize {
        let arena = plan.arena_bytes.saturating_sub(self.arena_bytes());
        let (each, members) = self.scratch_for(plan, members);
        let scratch = each.saturating_mul(members);
        arena.saturating_add(scratch.saturating_sub(self.scratch_bytes.saturating_mul(self.scratch.len())))
    }

    /// Bytes of scratch for each member, and for how many members. Never less than there is: other programs rely on it.
    fn scratch_for(&self, plan: &Plan, members: usize) -> (usize, usize) {
        (padded(plan.scratch_bytes).max(self.scratch_bytes), members.max(self.scratch.len()))
    }

    /// Makes the memory large enough for a plan. Programs that were compiled before go on using the lane, so nothing is
    /// given up before its replacement is there: after an error all is as it was. New memory takes no pages before it
    /// is written to, so that both together are no more than the larger one.
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

    /// Bytes of the arena.
    pub(super) fn arena_bytes(&self) -> usize {
        self.arena.as_ref().map_or(0, Block::len)
    }

    fn arena(&self) -> *mut u8 {
        self.arena.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr)
    }
}

/// What a tower's plan runs on.
pub(super) struct TowerCx<'a> {
    pub(super) team: &'a mut Team,
    pub(super) lane: &'a Lane,
    pub(super) isa: Isa,
    pub(super) meeting: Meeting<'a>,
    pub(super) at: Option<&'a Whereabouts>,
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    runs: u64,
    seconds: f64,
    best: f64,
}

/// Which part of a plan to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// What reads no variable, at most a snapshot.
    Apart,
    Compute,
    Commit,
}

/// A tower's plan with room for the pointers of one run, kept so that no run allocates.
pub(super) struct TowerRun {
    pub(super) plan: Plan,
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
    scratch: Vec<*mut u8>,
    times: Vec<Tally>,
}

// SAFETY: the pointers are written at the beginning of every run, before they are used, under the engine's lock; those
// into variables are used while it is this engine's turn with them.
unsafe impl Send for TowerRun {}

impl Plan {
    /// Where something is in this run.
    pub(super) fn pointer(
        &self,
        loc: &Loc,
        lane: &Lane,
        variables: &Variables,
        snapshot: &Variables,
        feeds: &[Feed<'_>],
    ) -> *mut u8 {
        let base = match loc.base {
            Base::Arena => lane.arena(),
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
        TowerRun { plan, reads: Vec::new(), writes: Vec::new(), scratch: Vec::new(), times }
    }

    /// Fills the tables with where everything is in this run.
    pub(super) fn resolve(
        &mut self,
        lane: &Lane,
        variables: &Variables,
        snapshot: &Variables,
        feeds: &[Feed<'_>],
    ) {
        self.reads.clear();
        self.writes.clear();
        for step in &self.plan.steps {
            let pointer = |loc: &Loc| self.plan.pointer(loc, lane, variables, snapshot, feeds);
            self.reads.extend(step.reads.iter().map(|loc| pointer(loc).cast_const()));
            self.writes.extend(step.writes.iter().map(pointer));
        }
        self.scratch.clear();
        self.scratch.extend(lane.scratch.iter().map(Block::as_ptr));
    }

    /// Runs one step, whose pointers begin at `at` in the tables.
    fn step(
        &mut self,
        i: usize,
        at: &mut Cursor,
        cx: &mut TowerCx<'_>,
        run: &RunInfo,
        finite: &AtomicBool,
    ) -> Result<()> {
        let step = &self.plan.steps[i];
        let memory = Memory {
            reads: &self.reads[at.read..at.read + step.reads.len()],
            writes: &self.writes[at.write..at.write + step.writes.len()],
            forms: &step.forms,
            checked: &step.checked,
            shared: cx.lane.arena().wrapping_add(step.shared.unwrap_or(0)),
            scratch: &self.scratch,
            scratch_bytes: cx.lane.scratch_bytes,
            finite,
            isa: cx.isa,
            seed: run.seed,
            draw: run.draw,
            meeting: cx.meeting,
        };
        at.skip(step);
        cx.meeting.exchange.at_step(cx.meeting.tower, i);
        if let Some(whereabouts) = cx.at {
            whereabouts.set(Some(&step.origin));
        }
        let started = (!self.times.is_empty()).then(Instant::now);
        // SAFETY: the plan gave every buffer its own place for as long as it lives, `resolve` has just filled the
        // tables, the engine's lock keeps everyone else away, and whoever runs steps that touch variables has the turn.
        let ran = catch_unwind(AssertUnwindSafe(|| unsafe { step.work.run(cx.team, &memory) }));
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
    ) -> Result<()> {
        let Plan { live_from, commit_from, .. } = self.plan;
        let steps = match phase {
            Phase::Apart => 0..live_from,
            Phase::Compute => live_from..commit_from,
            Phase::Commit => commit_from..self.plan.steps.len(),
        };
        let mut at = Cursor::default();
        self.plan.steps[..steps.start].iter().for_each(|step| at.skip(step));
        steps.into_iter().try_for_each(|i| self.step(i, &mut at, cx, run, finite))
    }

    /// Seconds spent in each kernel, if they are counted.
    pub(super) fn profile(&self) -> impl Iterator<Item = KernelTime> {
        self.plan.steps.iter().zip(&self.times).map(|(step, t)| KernelTime {
            name: format!("{} {}", step.work.name(), step.origin.name),
            runs: t.runs,
            seconds: t.seconds,
            best_seconds: t.best,
            flops: step.work.flops(),
            bytes: step.bytes,
        })
    }

    /// Runs step by step and looks at every result. Goes on to the end even when it has found something, so that the
    /// other towers do not wait for it.
    pub(super) fn find_bad(
        &mut self,
        cx: &mut TowerCx<'_>,
        run: &RunInfo,
        hints: &HashMap<String, String>,
    ) -> Result<Option<Error>> {
        let (ignored, mut at) = (AtomicBool::new(true), Cursor::default());
        let mut found = None;
        for i in 0..self.plan.commit_from {
            let first = at.write;
            self.step(i, &mut at, cx, run, &ignored)?;
            let step = &self.plan.steps[i];
            let bad = step.forms.iter().enumerate().any(|(k, &(dtype, n))| {
                // SAFETY: the step has just written n elements there.
                unsafe { !tensorpack_kernels::all_finite(cx.isa, dtype, self.writes[first + k], n) }
            });
            if bad && found.is_none() {
                found = Some(faults::not_finite(&step.origin, hints));
            }
        }
        Ok(found)
    }
}

/// What a kernel that panicked said.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    Error::new(ErrorKind::Engine, format!("a kernel panicked: {}", text.as_deref().unwrap_or("no message")))
}

/// How far the tables have been used.
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
    use super::super::plan::Mode;
    use super::*;
    use crate::kir::Program;

    /// A plan that does nothing in so much memory.
    fn plan(arena_bytes: usize, scratch_bytes: usize) -> Plan {
        let mut plan = Plan::new(Program::default(), &Variables::default(), Mode::Fast).unwrap();
        (plan.arena_bytes, plan.scratch_bytes) = (arena_bytes, scratch_bytes);
        plan
    }

    #[test]
    fn a_lane_keeps_its_arena_when_a_larger_one_cannot_be_had() {
        let mut lane = Lane::default();
        lane.make_room(&plan(4096, 64), 2).unwrap();
        let there = lane.arena();
        for vast in [plan(1 << 60, 64), plan(usize::MAX - 64, 64), plan(4096, 1 << 60)] {
            assert_eq!(lane.make_room(&vast, 2).unwrap_err().kind(), ErrorKind::Memory);
            assert_eq!(lane.arena(), there);
            assert_eq!((lane.arena_bytes(), lane.scratch.len(), lane.scratch_bytes), (4096, 2, 64));
        }
    }

    #[test]
    fn scratch_is_never_for_fewer_members_than_before() {
        let mut lane = Lane::default();
        lane.make_room(&plan(64, 64), 4).unwrap();
        // Larger, for the members of a smaller team.
        assert_eq!(lane.missing(&plan(64, 256), 2), 4 * 256 - 4 * 64);
        lane.make_room(&plan(64, 256), 2).unwrap();
        assert_eq!((lane.scratch.len(), lane.scratch_bytes), (4, 256));
        // Smaller, for the members of a larger one.
        assert_eq!(lane.missing(&plan(64, 64), 5), 256);
        lane.make_room(&plan(64, 64), 5).unwrap();
        assert_eq!((lane.scratch.len(), lane.scratch_bytes), (5, 256));
        assert_eq!(lane.missing(&plan(64, 256), 5), 0);
    }
}
