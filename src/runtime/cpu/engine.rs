//! The engine: teams of threads, the variables, one arena a tower, and programs that run on them.
//!
//! An engine can be forked: the forks have threads and memory of their own, share the variables, and run at the same
//! time. Each run of a fork computes on a snapshot, and takes its turn with the variables to update them.

use super::conductor::{Conducted, Conductor};
use super::exchange::Exchange;
use super::memory::{Block, padded};
use super::plan::{Base, Loc, Mode, Plan};
use super::sharing::SharedVariables;
use super::variables::Variables;
use super::widen::widen;
use super::work::{Meeting, Memory};
use crate::graph::VariableInfo;
use crate::kir::{BufferKind, Origin, Program, View};
use crate::runtime::executor::{Executable, Executor, Feed, Fork, KernelTime, Outcome, RunInfo};
use crate::runtime::{Lowered, Turns, Whereabouts, faults, memory_limit};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_kernels::{Isa, Team};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How the CPU engine works.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads of a tower's team; `None`: the cores, shared among the towers.
    pub threads: Option<usize>,
    /// The instructions to use; `None`: the best there are.
    pub isa: Option<Isa>,
    /// The most bytes to allocate; `None`: what the machine or its cgroup allows.
    pub memory_limit: Option<usize>,
    /// The longest one tower waits for another.
    pub deadline: Duration,
    /// Whether to count the time of each kernel.
    pub profile: bool,
}

/// A CPU engine, whose variables are used in these turns.
pub fn cpu_executor(options: &CpuOptions, turns: &Turns) -> Box<dyn Executor> {
    Box::new(Engine {
        options: options.clone(),
        variables: SharedVariables::new(turns),
        shared: Shared::new(options, Variables::default()),
        fork: None,
        conductor: None,
    })
}

struct Engine {
    options: CpuOptions,
    variables: SharedVariables,
    /// Who runs programs of several towers, if there are any.
    conductor: Option<Arc<Conductor>>,
    shared: Arc<Mutex<Shared>>,
    fork: Option<Fork>,
}

/// What all programs of an engine use, one at a time.
struct Shared {
    /// Teams, by how many towers they are for: the same threads serve every program with that many.
    crews: Vec<Crew>,
    /// Memory of tower 0, of tower 1, and so on.
    lanes: Vec<Lane>,
    /// The variables as a run of a fork found them; nothing in an engine that is no fork.
    snapshot: Variables,
    isa: Isa,
}

impl Shared {
    fn new(options: &CpuOptions, snapshot: Variables) -> Arc<Mutex<Shared>> {
        Arc::new(Mutex::new(Shared {
            crews: Vec::new(),
            lanes: Vec::new(),
            snapshot,
            isa: options.isa.map_or_else(Isa::detect, |i| i.min(Isa::detect())),
        }))
    }
}

/// The threads for a number of towers.
struct Crew {
    /// One member for each tower, which leads that tower's team.
    leaders: Team,
    teams: Vec<Mutex<Team>>,
    exchange: Arc<Exchange>,
}

/// The working memory of one tower.
#[derive(Default)]
struct Lane {
    arena: Option<Block>,
    scratch: Vec<Block>,
    scratch_bytes: usize,
}

impl Engine {
    fn lock(&self) -> Result<MutexGuard<'_, Shared>> {
        lock(&self.shared)
    }

    /// Makes teams for so many towers, if there are none yet.
    fn crew(&self, shared: &mut Shared, towers: usize) -> Result<()> {
        if shared.crews.iter().any(|c| c.teams.len() == towers) {
            return Ok(());
        }
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let engines = self.fork.as_ref().map_or(1, |fork| fork.towers);
        let threads = self.options.threads.unwrap_or(cores / (towers * engines)).max(1);
        let all = threads * towers * engines;
        let leaders = Team::among(towers, all);
        if leaders.len() < towers {
            return Err(Error::new(
                ErrorKind::Engine,
                format!("no threads could be started for {towers} towers"),
            ));
        }
        shared.crews.push(Crew {
            leaders,
            teams: (0..towers).map(|_| Mutex::new(Team::among(threads, all))).collect(),
            exchange: Arc::new(Exchange::new(towers, self.options.deadline, all <= cores)),
        });
        Ok(())
    }

    fn plan(&self, lowered: Lowered, mode: Mode) -> Result<CpuProgram> {
        let mut shared = self.lock()?;
        let mut variables = self.variables.take()?;
        let mut programs = lowered.programs;
        programs.iter_mut().for_each(widen);
        self.crew(&mut shared, 1)?;
        if mode != Mode::Inspect {
            for program in &mut programs {
                self.fold_constants(program, &mut shared, &mut variables)?;
            }
        }
        self.ready(programs, lowered.fetches, mode, &mut shared, &variables)
    }

    /// Plans with all the memory and threads they need.
    fn ready(
        &self,
        programs: Vec<Program>,
        fetches: Vec<(usize, usize)>,
        mode: Mode,
        shared: &mut Shared,
        variables: &Variables,
    ) -> Result<CpuProgram> {
        let plans = programs
            .into_iter()
            .map(|program| Plan::new(program, variables, mode))
            .collect::<Result<Vec<Plan>>>()?;
        self.crew(shared, plans.len())?;
        shared.lanes.resize_with(plans.len().max(shared.lanes.len()), Lane::default);
        let (crew, lanes) = crew_and_lanes(shared, plans.len())?;
        let mut more = 0usize;
        for (plan, lane) in plans.iter().zip(lanes.iter()) {
            let arena = lane.arena.as_ref().map_or(0, Block::len);
            let scratch = padded(plan.scratch_bytes).saturating_sub(lane.scratch_bytes);
            more = more.saturating_add(plan.arena_bytes.saturating_sub(arena));
            more = more.saturating_add(scratch.saturating_mul(crew.threads()));
        }
        memory_limit::check(more, "this program", self.options.memory_limit)?;
        for (plan, lane) in plans.iter().zip(lanes) {
            lane.make_room(plan, crew.threads())?;
        }
        let profile = self.options.profile;
        let towers = plans.into_iter().map(|plan| Mutex::new(TowerRun::new(plan, profile))).collect();
        Ok(CpuProgram {
            towers,
            fetches,
            shared: self.shared.clone(),
            variables: self.variables.clone(),
            at: self.fork.as_ref().map(|fork| fork.at.clone()),
        })
    }

    /// The program, with who runs it, if it has several towers.
    fn conducted(&mut self, program: CpuProgram) -> Result<Conducted> {
        let conductor = match &self.conductor {
            Some(conductor) => conductor.clone(),
            None => self.conductor.insert(Conductor::new()?).clone(),
        };
        let exchange = crew_and_lanes(&mut *self.lock()?, program.towers.len())?.0.exchange.clone();
        Ok(Conducted::new(program, exchange, conductor))
    }

    /// Runs kernels that read constants alone now, and makes their results constants.
    fn fold_constants(
        &self,
        program: &mut Program,
        shared: &mut Shared,
        variables: &mut Variables,
    ) -> Result<()> {
        let mut constant: Vec<bool> =
            program.buffers.iter().map(|b| matches!(b.kind, BufferKind::Constant(_))).collect();
        let mut early = Program { buffers: program.buffers.clone(), ..Program::default() };
        let mut rest = Vec::new();
        for node in std::mem::take(&mut program.kernels) {
            let reads = node.kernel.reads();
            if node.kernel.is_pure() && reads.iter().all(|v| constant[v.buffer.0 as usize]) {
                node.outputs.iter().for_each(|b| constant[b.0 as usize] = true);
                early.kernels.push(node);
            } else {
                rest.push(node);
            }
        }
        program.kernels = rest;
        let made: Vec<_> = early.kernels.iter().flat_map(|n| n.outputs.clone()).collect();
        if made.is_empty() {
            return Ok(());
        }
        early.fetches =
            made.iter().map(|&b| View::dense(b, early.buffer(b).dtype, &early.buffer(b).sizes)).collect();
        let fetches = (0..made.len()).map(|i| (0, i)).collect();
        let ready = self.ready(vec![early], fetches, Mode::Inspect, shared, variables)?;
        let (mut values, run) = (Vec::new(), RunInfo { seed: 0, draw: 0 });
        ready.resolve(shared, variables, &[]);
        ready.finish(shared, variables, &run, &AtomicBool::new(true), &[], &mut values)?;
        for (b, value) in made.into_iter().zip(values) {
            program.buffers[b.0 as usize].kind = BufferKind::Constant(value);
        }
        Ok(())
    }
}

fn lock(shared: &Mutex<Shared>) -> Result<MutexGuard<'_, Shared>> {
    shared.lock().map_err(|_| {
        Error::new(ErrorKind::Engine, "the engine stopped after a panic in a kernel; its state is lost")
    })
}

/// The lock of something that only its own tower uses; a panic elsewhere does not make it worse.
fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The crew for so many towers, and their memory.
fn crew_and_lanes(shared: &mut Shared, towers: usize) -> Result<(&mut Crew, &mut [Lane])> {
    let crew = shared.crews.iter_mut().find(|c| c.teams.len() == towers);
    let crew =
        crew.ok_or_else(|| Error::new(ErrorKind::Engine, format!("there are no teams for {towers} towers")))?;
    Ok((crew, &mut shared.lanes[..towers]))
}

impl Crew {
    /// The members of each tower's team.
    fn threads(&self) -> usize {
        self.teams.iter().map(|t| own(t).len()).max().unwrap_or(1)
    }
}

impl Lane {
    fn make_room(&mut self, plan: &Plan, members: usize) -> Result<()> {
        if plan.arena_bytes > self.arena.as_ref().map_or(0, Block::len) || self.arena.is_none() {
            self.arena = None;
            self.arena = Some(Block::zeroed(plan.arena_bytes)?);
        }
        let scratch = padded(plan.scratch_bytes).max(self.scratch_bytes);
        if scratch > self.scratch_bytes || self.scratch.len() < members {
            self.scratch = (0..members).map(|_| Block::zeroed(scratch)).collect::<Result<_>>()?;
            self.scratch_bytes = scratch;
        }
        Ok(())
    }

    fn arena(&self) -> *mut u8 {
        self.arena.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr)
    }
}

impl Executor for Engine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        *self.variables.take()? = Variables::new(variables, seed, self.options.memory_limit)?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        self.variables.take()?.read(index)
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.variables.take()?.write(index, value)
    }

    fn compile(&mut self, lowered: Lowered) -> Result<Box<dyn Executable>> {
        let mode = if self.fork.is_some() { Mode::Apart } else { Mode::Fast };
        let program = self.plan(lowered, mode)?;
        Ok(match program.towers.len() {
            1 => Box::new(program),
            _ => Box::new(self.conducted(program)?),
        })
    }

    fn find_bad(&mut self, lowered: Lowered, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Option<Error>> {
        let hints = lowered.hints.clone();
        let program = self.plan(lowered, Mode::Inspect)?;
        match program.towers.len() {
            1 => program.find_bad(run, feeds, &hints),
            _ => self.conducted(program)?.find_bad(run, feeds, hints),
        }
    }

    fn lost(&self) -> bool {
        self.conductor.as_ref().is_some_and(|c| c.lost())
    }

    fn fork(&self, fork: Fork) -> Result<Box<dyn Executor>> {
        let snapshot = self.variables.take()?.room()?;
        Ok(Box::new(Engine {
            options: self.options.clone(),
            variables: self.variables.of_tower(fork.tower),
            shared: Shared::new(&self.options, snapshot),
            fork: Some(fork),
            conductor: None,
        }))
    }
}

/// A program: a plan for each tower.
pub(super) struct CpuProgram {
    towers: Vec<Mutex<TowerRun>>,
    /// For each value the caller gets, which tower has it, and as which of its fetches.
    fetches: Vec<(usize, usize)>,
    shared: Arc<Mutex<Shared>>,
    variables: SharedVariables,
    /// Where to say which kernel runs, if somebody waits for it.
    at: Option<Whereabouts>,
}

/// What a tower's plan runs on.
struct TowerCx<'a> {
    team: &'a mut Team,
    lane: &'a Lane,
    isa: Isa,
    meeting: Meeting<'a>,
    at: Option<&'a Whereabouts>,
}

impl CpuProgram {
    /// Fills every tower's tables with where everything is in this run.
    fn resolve(&self, shared: &mut Shared, variables: &Variables, feeds: &[Feed<'_>]) {
        for (tower, lane) in self.towers.iter().zip(&shared.lanes) {
            own(tower).resolve(lane, variables, &shared.snapshot, feeds);
        }
    }

    /// Copies the variables that are read from a snapshot.
    fn look(&self, shared: &mut Shared, variables: &Variables) {
        for tower in &self.towers {
            shared.snapshot.copy_some(variables, &own(tower).plan.snapshots);
        }
    }

    /// Runs `job` on every tower's plan, all at the same time, and returns the first error.
    fn on_all_towers(
        &self,
        shared: &mut Shared,
        job: &(dyn Fn(&mut TowerRun, &mut TowerCx<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        let isa = shared.isa;
        let Shared { crews, lanes, .. } = shared;
        let crew = crews.iter_mut().find(|c| c.teams.len() == self.towers.len());
        let Crew { leaders, teams, exchange } =
            crew.ok_or_else(|| Error::new(ErrorKind::Engine, "the program's teams are gone"))?;
        let (lanes, teams, exchange) = (&*lanes, &*teams, &**exchange);
        exchange.begin();
        leaders.run(self.towers.len(), &|i, _| {
            let mut at_work = exchange.enter(i);
            let mut team = own(&teams[i]);
            let meeting = Meeting { exchange, tower: i };
            let mut cx = TowerCx { team: &mut team, lane: &lanes[i], isa, meeting, at: self.at.as_ref() };
            match catch_unwind(AssertUnwindSafe(|| job(&mut own(&self.towers[i]), &mut cx))) {
                Ok(outcome) => at_work.outcome = Some(outcome),
                Err(panic) => {
                    at_work.outcome = panic.downcast_ref::<Error>().cloned().map(Err);
                    drop(at_work);
                    resume_unwind(panic)
                }
            }
        });
        exchange.end()
    }

    /// Runs, result by result, until one is not finite; returns the error that names it.
    pub(super) fn find_bad(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        hints: &HashMap<String, String>,
    ) -> Result<Option<Error>> {
        let mut shared = lock(&self.shared)?;
        let variables = self.variables.take()?;
        let found = Mutex::new(None);
        self.resolve(&mut shared, &variables, feeds);
        self.on_all_towers(&mut shared, &|tower, cx| {
            if let Some(e) = tower.find_bad(cx, run, hints)? {
                // Of several towers the first to find something names it; the others find the same a moment later.
                own(&found).get_or_insert(e);
            }
            Ok(())
        })?;
        Ok(own(&found).take())
    }

    /// Runs once.
    pub(super) fn run(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        let outcome = self.execute(&mut *lock(&self.shared)?, run, feeds, outputs);
        if let Some(at) = &self.at {
            at.set(None);
        }
        outcome
    }

    /// What each step of each tower was lowered from.
    pub(super) fn origins(&self) -> Vec<Vec<Arc<Origin>>> {
        let steps =
            |tower: &Mutex<TowerRun>| own(tower).plan.steps.iter().map(|s| s.origin.clone()).collect();
        self.towers.iter().map(steps).collect()
    }

    fn execute(
        &self,
        shared: &mut Shared,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        let finite = AtomicBool::new(true);
        let mut variables = self.variables.take()?;
        self.resolve(shared, &variables, feeds);
        if self.variables.are_shared() {
            self.look(shared, &variables);
            drop(variables);
            self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, &finite, Phase::Apart))?;
            if !finite.load(Ordering::Relaxed) {
                return Ok(Outcome::NotFinite);
            }
            variables = self.variables.take()?;
        }
        self.finish(shared, &mut variables, run, &finite, feeds, outputs)
    }

    /// What needs the variables themselves, and their update.
    fn finish(
        &self,
        shared: &mut Shared,
        variables: &mut Variables,
        run: &RunInfo,
        finite: &AtomicBool,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, finite, Phase::Compute))?;
        if !finite.load(Ordering::Relaxed) {
            return Ok(Outcome::NotFinite);
        }
        self.fetch(shared, variables, feeds, outputs)?;
        self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, finite, Phase::Commit))?;
        let behind =
            if self.variables.are_shared() { variables.version - shared.snapshot.version } else { 0 };
        let changes = |tower: &Mutex<TowerRun>| own(tower).plan.changes_variables();
        variables.version += u64::from(self.towers.iter().any(changes));
        Ok(Outcome::Committed { behind })
    }

    fn fetch(
        &self,
        shared: &Shared,
        variables: &Variables,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        outputs.truncate(self.fetches.len());
        for (i, &(tower, at)) in self.fetches.iter().enumerate() {
            let run = own(&self.towers[tower]);
            let f = &run.plan.fetches[at];
            let fits = outputs.get(i).is_some_and(|t| t.dtype() == f.dtype && t.sizes() == f.sizes);
            if !fits {
                let fresh = HostTensor::zeros(f.dtype, f.sizes.as_slice())?;
                match outputs.get_mut(i) {
                    Some(t) => *t = fresh,
                    None => outputs.push(fresh),
                }
            }
            let bytes = outputs[i].len() * f.dtype.size();
            let from = run.plan.pointer(&f.loc, &shared.lanes[tower], variables, &shared.snapshot, feeds);
            // SAFETY: the plan placed the value here, and it lives until the fetches are taken.
            let there = unsafe { std::slice::from_raw_parts(from.cast_const(), bytes) };
            outputs[i].copy_from_bytes(if bytes == 0 { &[] } else { there })?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    runs: u64,
    seconds: f64,
    best: f64,
}

/// Which part of a plan to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What reads no variable, at most a snapshot.
    Apart,
    Compute,
    Commit,
}

/// A tower's plan with room for the pointers of one run, kept so that no run allocates.
struct TowerRun {
    plan: Plan,
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
    fn pointer(
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
    fn new(plan: Plan, profile: bool) -> TowerRun {
        let idle = Tally { runs: 0, seconds: 0.0, best: f64::INFINITY };
        let times = if profile { vec![idle; plan.steps.len()] } else { Vec::new() };
        TowerRun { plan, reads: Vec::new(), writes: Vec::new(), scratch: Vec::new(), times }
    }

    /// Fills the tables with where everything is in this run.
    fn resolve(&mut self, lane: &Lane, variables: &Variables, snapshot: &Variables, feeds: &[Feed<'_>]) {
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

    fn run(&mut self, cx: &mut TowerCx<'_>, run: &RunInfo, finite: &AtomicBool, phase: Phase) -> Result<()> {
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

    /// Runs step by step and looks at every result. Goes on to the end even when it has found something, so that the
    /// other towers do not wait for it.
    fn find_bad(
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
    fn skip(&mut self, step: &super::plan::Step) {
        self.read += step.reads.len();
        self.write += step.writes.len();
    }
}

impl Executable for CpuProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        CpuProgram::run(self, run, feeds, outputs)
    }

    fn plan_text(&self) -> String {
        let several = self.towers.len() > 1;
        let text = |(i, t): (usize, &Mutex<TowerRun>)| {
            let text = own(t).plan.text();
            if several { format!("tower {i}\n{text}") } else { text }
        };
        self.towers.iter().enumerate().map(text).collect()
    }

    fn profile(&self) -> Vec<KernelTime> {
        let mut all = Vec::new();
        for tower in &self.towers {
            let tower = own(tower);
            all.extend(tower.plan.steps.iter().zip(&tower.times).map(|(step, t)| KernelTime {
                name: format!("{} {}", step.work.name(), step.origin.name),
                runs: t.runs,
                seconds: t.seconds,
                best_seconds: t.best,
                flops: step.work.flops(),
                bytes: step.bytes,
            }));
        }
        all
    }
}
