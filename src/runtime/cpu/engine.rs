//! The CPU engine: thread teams, variables, an arena per tower, and the programs that run on them.
//!
//! An engine can be forked. Forks have their own threads and memory, share the variables, and run
//! concurrently. Each run of a fork computes on a snapshot and takes a turn with the variables to
//! update them.

use super::all_reduce::Communicator;
use super::compiled_kernel::{CompiledKernel, Participant};
use super::exchange::{Exchange, Split};
use super::overflow::Measured;
use super::packed_filters::PackedFilters;
use super::pipeline::{self, Compilation, Mode, PassCx};
use super::plan::Plan;
use super::shared_variables::SharedVariables;
use super::tower_positions::{self, Origins};
use super::tower_run::{Phase, TowerCx, TowerMemory, TowerRun};
use super::tower_thread::{TowerThread, WatchedProgram};
use super::variables::Variables;
use crate::distributed::ProcessGroup;
use crate::graph::{Sharding, VariableInfo};
use crate::kir::{Kernel, KernelNode, OnOverflow, Program, Shards};
use crate::runtime::executor::{Executable, Executor, Feed, Fork, KernelTime, Outcome, RunInfo, check_feeds};
use crate::runtime::session::is_valid_feed;
use crate::runtime::value_errors::Diagnosis;
use crate::runtime::{
    KernelProgress, Lowered, Source, Turns, memory_limit, overflow_rules, tower_collectives,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorpack_kernels::{Isa, Team};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Options of the CPU engine.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads per tower. Defaults to the number of cores divided by the number of towers.
    pub threads: Option<usize>,
    /// The instruction set. Defaults to the best one of this machine.
    pub isa: Option<Isa>,
    /// Maximum number of bytes to allocate. Defaults to the limit of the machine or its cgroup.
    pub memory_limit: Option<usize>,
    /// Maximum time that a tower waits for another.
    pub deadline: Duration,
    /// Whether to measure the time of each kernel.
    pub profile: bool,
    /// Whether convolutions use the direct algorithm only, never Winograd.
    pub full_precision: bool,
    /// Whether plan texts start with the program after each compiler pass.
    pub dump_passes: bool,
    /// The processes that run the same program on their own towers.
    pub process_group: Option<Arc<ProcessGroup>>,
}

/// Creates a CPU engine. `turns` orders the access to its variables.
pub fn cpu_executor(options: &CpuOptions, turns: &Turns) -> Box<dyn Executor> {
    Box::new(Engine::new(options, turns))
}

/// Compiles lowered programs.
#[cfg(test)]
pub(in crate::runtime) fn compile(options: &CpuOptions, lowered: Lowered) -> Result<Box<dyn Executable>> {
    Engine::new(options, &Turns::new(options.deadline)).executable(lowered)
}

struct Engine {
    options: CpuOptions,
    variables: SharedVariables,
    /// The thread that runs programs that must be watched, once there are any.
    tower_thread: Option<Arc<TowerThread>>,
    shared: Arc<Mutex<Shared>>,
    fork: Option<Fork>,
    /// Whether all teams update the variables together, and not the first alone.
    joint_updates: bool,
}

/// The resources that all programs of an engine share. One program uses them at a time.
struct Shared {
    /// Teams for each number of towers: all programs with that many towers use the same threads.
    teams: Vec<TowerTeams>,
    /// The memory of each tower.
    memories: Vec<TowerMemory>,
    /// The snapshot of the variables that a fork computes on; empty if the engine is not a fork.
    snapshot: Variables,
    filters: PackedFilters,
    isa: Isa,
}

impl Shared {
    fn new(options: &CpuOptions, snapshot: Variables) -> Arc<Mutex<Shared>> {
        Arc::new(Mutex::new(Shared {
            teams: Vec::new(),
            memories: Vec::new(),
            snapshot,
            filters: PackedFilters::default(),
            isa: options.isa.map_or_else(Isa::detect, |i| i.min(Isa::detect())),
        }))
    }
}

/// The threads of programs with a certain number of towers.
struct TowerTeams {
    /// One thread per tower, which leads that tower's team.
    leaders: Team,
    teams: Vec<Mutex<Team>>,
    /// As many threads as all teams have, for updates that they do together.
    joint: Option<Mutex<Team>>,
    communicator: Arc<Communicator>,
}

impl Engine {
    fn new(options: &CpuOptions, turns: &Turns) -> Engine {
        Engine {
            options: options.clone(),
            variables: SharedVariables::new(turns),
            shared: Shared::new(options, Variables::default()),
            fork: None,
            tower_thread: None,
            joint_updates: false,
        }
    }

    /// Returns how processes divide variables and their updates.
    fn shards(&self) -> Option<Shards> {
        let group = self.options.process_group.as_ref().filter(|group| group.size() > 1)?;
        Some(Shards { count: group.size(), own: Some(group.rank()) })
    }

    fn lower(&self, source: &Source<'_>) -> Result<Lowered> {
        let lowered = source.lower()?;
        Ok(match self.shards() {
            Some(shards) => lowered.shard_updates(source.graph().variables(), shards),
            None => lowered,
        })
    }

    fn executable(&mut self, lowered: Lowered) -> Result<Box<dyn Executable>> {
        let mode = if self.fork.is_some() { Mode::Apart } else { Mode::Fast };
        let program = self.plan(lowered, mode)?;
        Ok(match self.must_be_watched(&program) {
            true => Box::new(self.watched(program)?),
            false => Box::new(program),
        })
    }

    /// Returns whether a program could keep its caller waiting forever: towers may wait for each
    /// other, and a custom kernel may not return. Forks are watched by their owner.
    fn must_be_watched(&self, program: &CpuProgram) -> bool {
        program.towers.len() > 1 || (self.fork.is_none() && program.has_custom_kernels())
    }

    fn lock(&self) -> Result<MutexGuard<'_, Shared>> {
        lock(&self.shared)
    }

    /// Returns the number of engines that run at the same time.
    fn engines(&self) -> usize {
        self.fork.as_ref().map_or(1, |fork| fork.towers)
    }

    /// Returns the number of its first tower.
    fn first_tower(&self) -> usize {
        self.fork.as_ref().map_or(0, |fork| fork.tower)
    }

    /// Returns the number of threads of each of these many towers.
    fn threads(&self, towers: usize) -> usize {
        self.options.threads.unwrap_or(cores() / towers.saturating_mul(self.engines())).max(1)
    }

    /// Creates teams for this number of towers if there are none yet.
    fn teams(&self, shared: &mut Shared, towers: usize) -> Result<()> {
        if shared.teams.iter().any(|c| c.teams.len() == towers) {
            return Ok(());
        }
        let cores = cores();
        let threads = self.threads(towers);
        let all = threads.saturating_mul(towers).saturating_mul(self.engines());
        let first = self.first_tower();
        let leaders = Team::among(towers, all, "tower");
        if leaders.len() < towers {
            return Err(Error::new(
                ErrorKind::Engine,
                format!("no threads could be started for {towers} towers"),
            ));
        }
        // The error of a tower that waits for another process names it, so it comes first.
        let explanation = match &self.options.process_group {
            Some(group) if group.size() > 1 => ProcessGroup::EXPLANATION,
            _ => Duration::ZERO,
        };
        let deadline = self.options.deadline.saturating_add(explanation);
        let team = |tower: usize| Mutex::new(Team::among(threads, all, &format!("tower{}", first + tower)));
        let communicator = Arc::new(Communicator::new(towers, deadline, all <= cores));
        tower_positions::watch(first, &communicator);
        shared.teams.push(TowerTeams {
            leaders,
            teams: (0..towers).map(team).collect(),
            joint: (self.joint_updates && towers > 1).then(|| Mutex::new(Team::among(all, all, "update"))),
            communicator,
        });
        Ok(())
    }

    fn plan(&self, lowered: Lowered, mode: Mode) -> Result<CpuProgram> {
        let mut shared = self.lock()?;
        let mut variables = self.variables.take()?;
        let (fetches, feeds) = (lowered.fetches().to_vec(), lowered.feeds().to_vec());
        let programs = lowered.into_programs();
        let rules = overflow_rules::rules(&programs);
        let infinite = programs.iter().flat_map(|program| program.infinite.iter().copied()).collect();
        self.check_results(&programs, &shared)?;
        self.teams(&mut shared, 1)?;
        let threads = self.threads(programs.len());
        let mut compiled = programs
            .into_iter()
            .map(|program| self.run_passes(program, mode, threads, &mut shared, &mut variables))
            .collect::<Result<Vec<_>>>()?;
        // Towers would pack the same filter at the same time.
        if let [(only, _)] = &mut compiled[..] {
            only.keeps_filters = self.keeps_filters(mode);
        }
        check_all_reduces(&compiled)?;
        let (exchange, splits) = self.exchange(&compiled, mode)?.unzip();
        let splits = splits.unwrap_or_else(|| vec![Vec::new(); compiled.len()]);
        // A search for a bad value stores every result, and a limit must not end it.
        let limit = self.options.memory_limit.filter(|_| mode != Mode::Inspect);
        let program = self.ready(compiled, splits, fetches, &mut shared, &variables, limit)?;
        Ok(CpuProgram { feeds, infinite, exchange, rules, ..program })
    }

    /// Whether programs may keep packed filters between runs. A memory limit holds for one program and the
    /// variables, and kept filters of others would come on top.
    fn keeps_filters(&self, mode: Mode) -> bool {
        mode == Mode::Fast && self.options.memory_limit.is_none()
    }

    /// Returns the bytes of the variables and of a program, for which nothing is allocated.
    fn planned(&self, lowered: Lowered) -> Result<usize> {
        let mode = if self.fork.is_some() { Mode::Apart } else { Mode::Fast };
        let mut shared = self.lock()?;
        let mut variables = self.variables.take()?;
        let programs = lowered.into_programs();
        self.teams(&mut shared, 1)?;
        let (towers, threads) = (programs.len(), self.threads(programs.len()));
        let plans = programs
            .into_iter()
            .map(|program| {
                let (mut compilation, passes) =
                    self.run_passes(program, mode, threads, &mut shared, &mut variables)?;
                compilation.keeps_filters = towers == 1 && self.keeps_filters(mode);
                Plan::new(compilation, &variables, passes, &[])
            })
            .collect::<Result<Vec<Plan>>>()?;
        let joint = if self.joint_updates && towers > 1 { threads.saturating_mul(towers) } else { 0 };
        Ok(planned_bytes(&plans, &variables, threads, joint))
    }

    /// Prepares the all-reduces over several processes, if there are any.
    fn exchange(
        &self,
        compiled: &[(Compilation, String)],
        mode: Mode,
    ) -> Result<Option<(Exchange, Vec<Vec<Split>>)>> {
        let Some(group) = &self.options.process_group else { return Ok(None) };
        let towers: Vec<&Compilation> = compiled.iter().map(|(compilation, _)| compilation).collect();
        // A search for a bad value looks at every sum.
        Exchange::new(&towers, group, self.options.deadline, mode != Mode::Inspect)
    }

    /// Runs the pipeline on one tower's program.
    fn run_passes(
        &self,
        program: Program,
        mode: Mode,
        threads: usize,
        shared: &mut Shared,
        variables: &mut Variables,
    ) -> Result<(Compilation, String)> {
        let mut evaluate =
            |program: Program, variables: &mut Variables| self.evaluate(program, shared, variables);
        let full_precision = self.options.full_precision;
        let bf16 = pipeline::bf16_isa(self.options.isa);
        let mut cx = PassCx { mode, full_precision, threads, bf16, variables, evaluate: &mut evaluate };
        pipeline::run(program, &mut cx, self.options.dump_passes)
    }

    /// Runs a program that reads only constants, without any passes, and returns its fetches.
    fn evaluate(
        &self,
        program: Program,
        shared: &mut Shared,
        variables: &mut Variables,
    ) -> Result<Vec<HostTensor>> {
        let fetches = (0..program.fetches.len()).map(|i| (0, i)).collect();
        let bf16 = pipeline::bf16_isa(self.options.isa);
        let compilation = Compilation::new(program, self.options.full_precision, self.threads(1), bf16);
        let compiled = vec![(compilation, String::new())];
        let ready =
            self.ready(compiled, vec![Vec::new()], fetches, shared, variables, self.options.memory_limit)?;
        let (mut values, run) = (Vec::new(), RunInfo { seed: 0, draw: 0 });
        ready.resolve(shared, variables, &[]);
        ready.finish(shared, variables, &run, &AtomicBool::new(true), &[], &mut values)?;
        Ok(values)
    }

    /// Checks that the largest result fits in memory, before anything is planned. Results of maps
    /// and reductions are ignored, because they may be fused.
    fn check_results(&self, programs: &[Program], shared: &Shared) -> Result<()> {
        let stored = programs.iter().flat_map(|p| p.kernels.iter().map(move |node| (p, node)));
        let stored = stored.filter(|(_, n)| !matches!(n.kernel, Kernel::Map(_) | Kernel::Reduce { .. }));
        let bytes = |(p, node): &(&Program, &KernelNode)| {
            node.outputs.iter().map(|&b| p.buffer(b).bytes()).max().unwrap_or(0)
        };
        let Some(largest) = stored.max_by_key(bytes) else { return Ok(()) };
        let there = shared.memories.iter().map(TowerMemory::arena_bytes).max().unwrap_or(0);
        let (more, origin) = (bytes(&largest).saturating_sub(there), &largest.1.origin);
        if more == 0 {
            return Ok(());
        }
        memory_limit::check(more, "this program", self.options.memory_limit)
            .map_err(|e| e.at(origin.site).note(format!("the largest result is that of {}", origin.name)))
    }

    /// Plans compiled programs and allocates the memory and threads they need, within the limit.
    fn ready(
        &self,
        compiled: Vec<(Compilation, String)>,
        splits: Vec<Vec<Split>>,
        fetches: Vec<(usize, usize)>,
        shared: &mut Shared,
        variables: &Variables,
        limit: Option<usize>,
    ) -> Result<CpuProgram> {
        let plans = compiled
            .into_iter()
            .zip(splits)
            .map(|((compilation, passes), splits)| Plan::new(compilation, variables, passes, &splits))
            .collect::<Result<Vec<Plan>>>()?;
        self.teams(shared, plans.len())?;
        shared.memories.resize_with(plans.len().max(shared.memories.len()), TowerMemory::default);
        let filters =
            plans.iter().fold(0usize, |n, plan| n.saturating_add(shared.filters.missing(&plan.filters)));
        let (teams, memories) = teams_and_memories(shared, plans.len())?;
        let more = plans
            .iter()
            .zip(memories.iter())
            .fold(filters, |more, (plan, memory)| more.saturating_add(memory.missing(plan, teams.threads())));
        let joint = teams.joint.as_ref().map_or(0, |team| own(team).len());
        match limit {
            // A limit holds for the variables and a program together.
            Some(limit) => {
                let all = planned_bytes(&plans, variables, teams.threads(), joint);
                memory_limit::check(all, "this program with the variables", Some(limit))?;
            }
            None => memory_limit::check(more, "this program", None)?,
        }
        for (i, (plan, memory)) in plans.iter().zip(memories).enumerate() {
            memory.make_room(plan, teams.threads().max(if i == 0 { joint } else { 0 }))?;
        }
        plans.iter().try_for_each(|plan| shared.filters.make_room(&plan.filters))?;
        let profile = self.options.profile;
        let origins = |plan: &Plan| plan.steps.iter().map(|step| step.origin.clone()).collect();
        let origins = Arc::new(plans.iter().map(origins).collect::<Origins>());
        let towers = plans.into_iter().map(|plan| Mutex::new(TowerRun::new(plan, profile))).collect();
        Ok(CpuProgram {
            towers,
            origins,
            first_tower: self.first_tower(),
            fetches,
            feeds: Vec::new(),
            infinite: Vec::new(),
            shared: self.shared.clone(),
            variables: self.variables.clone(),
            at: self.fork.as_ref().map(|fork| fork.at.clone()),
            exchange: None,
            rules: Vec::new(),
        })
    }

    /// Returns a program with the thread that runs it while the caller watches.
    fn watched(&mut self, program: CpuProgram) -> Result<WatchedProgram> {
        let tower_thread = match &self.tower_thread {
            Some(tower_thread) => tower_thread.clone(),
            None => self.tower_thread.insert(TowerThread::new()?).clone(),
        };
        let communicator =
            teams_and_memories(&mut *self.lock()?, program.towers.len())?.0.communicator.clone();
        Ok(WatchedProgram::new(program, communicator, tower_thread))
    }
}

/// Returns the bytes of variables and of towers that run these plans, each with `threads` threads.
/// The first one has scratch memory for the `joint` threads that update variables together.
fn planned_bytes(plans: &[Plan], variables: &Variables, threads: usize, joint: usize) -> usize {
    let towers =
        plans.iter().enumerate().map(|(i, plan)| plan.bytes(threads.max(if i == 0 { joint } else { 0 })));
    towers.fold(variables.bytes(), usize::saturating_add)
}

/// Checks that the towers still meet at the same all-reduces in the same order: passes rewrite each
/// tower by itself, and those of a fork move what reads the current variables to the end.
fn check_all_reduces(compiled: &[(Compilation, String)]) -> Result<()> {
    let halves = compiled.iter().map(|(c, _)| c.program.kernels.split_at(c.live_from));
    let (apart, live): (Vec<_>, Vec<_>) = halves.unzip();
    [apart, live].iter().try_for_each(|towers| tower_collectives::check_all_reduces(towers)).map_err(|e| {
        e.note("a fork runs what reads the current variables last, and only some towers do so here")
            .note("run several towers in the session itself, not in its fork")
    })
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn lock(shared: &Mutex<Shared>) -> Result<MutexGuard<'_, Shared>> {
    shared.lock().map_err(|_| {
        Error::new(ErrorKind::Engine, "the engine stopped after a panic in a kernel; its state is lost")
    })
}

/// Locks something that only one tower uses, so a panic of another tower leaves it intact.
fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the teams and the memory of a program with this number of towers.
fn teams_and_memories(shared: &mut Shared, towers: usize) -> Result<(&mut TowerTeams, &mut [TowerMemory])> {
    let teams = shared.teams.iter_mut().find(|c| c.teams.len() == towers);
    let teams = teams
        .ok_or_else(|| Error::new(ErrorKind::Engine, format!("there are no teams for {towers} towers")))?;
    Ok((teams, &mut shared.memories[..towers]))
}

impl TowerTeams {
    /// Returns the number of threads in each tower's team.
    fn threads(&self) -> usize {
        self.teams.iter().map(|t| own(t).len()).max().unwrap_or(1)
    }
}

impl Executor for Engine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        let mut there = self.variables.take()?;
        // Compiled programs contain the locations of the variables.
        if there.count() > 0 {
            return Err(Error::new(ErrorKind::Engine, "this engine has its variables already"));
        }
        self.joint_updates = variables.iter().any(|v| v.sharding != Sharding::None);
        *there = Variables::new(variables, seed, self.options.memory_limit, self.shards())?;
        Ok(())
    }

    fn shards(&self, index: usize) -> Result<Option<Shards>> {
        Ok(self.variables.take()?.shards(index))
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        self.variables.take()?.read(index)
    }

    fn read_into(&self, index: usize, into: &mut HostTensor) -> Result<()> {
        self.variables.take()?.read_into(index, into)
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.variables.take()?.write(index, value)
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        self.executable(self.lower(source)?)
    }

    fn planned_bytes(&mut self, source: &Source<'_>) -> Result<usize> {
        let lowered = self.lower(source)?;
        self.planned(lowered)
    }

    fn find_non_finite(
        &mut self,
        source: &Source<'_>,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<Error>> {
        let lowered = self.lower(source)?;
        let diagnosis = lowered.diagnosis().clone();
        let program = self.plan(lowered, Mode::Inspect)?;
        match self.must_be_watched(&program) {
            true => self.watched(program)?.find_bad(run, feeds, diagnosis),
            false => program.find_bad(run, feeds, &diagnosis),
        }
    }

    fn lost(&self) -> bool {
        self.tower_thread.as_ref().is_some_and(|c| c.lost())
    }

    fn fork(&self, fork: Fork) -> Result<Box<dyn Executor>> {
        let snapshot = self.variables.take()?.zeroed_copy()?;
        Ok(Box::new(Engine {
            options: self.options.clone(),
            variables: self.variables.of_tower(fork.tower),
            shared: Shared::new(&self.options, snapshot),
            fork: Some(fork),
            tower_thread: None,
            joint_updates: false,
        }))
    }
}

/// A program: a plan for each tower.
pub(super) struct CpuProgram {
    towers: Vec<Mutex<TowerRun>>,
    origins: Arc<Origins>,
    /// The number of the first tower: that of the fork if it is a fork's.
    first_tower: usize,
    /// For each fetched value, the tower that has it and its index among the fetches of that tower.
    fetches: Vec<(usize, usize)>,
    /// Type and sizes of each feed.
    feeds: Vec<(DType, Vec<usize>)>,
    /// The feeds that may be infinite.
    infinite: Vec<usize>,
    shared: Arc<Mutex<Shared>>,
    variables: SharedVariables,
    /// Reports the kernel that is running, if it is watched.
    at: Option<KernelProgress>,
    /// The all-reduces over several processes.
    exchange: Option<Exchange>,
    /// What a run that fails its check does to variables.
    rules: Vec<(usize, OnOverflow)>,
}

impl CpuProgram {
    /// Fills every tower's tables with the pointers of this run.
    fn resolve(&self, shared: &mut Shared, variables: &Variables, feeds: &[Feed<'_>]) {
        for (tower, memory) in self.towers.iter().zip(&shared.memories) {
            own(tower).resolve(memory, variables, &shared.snapshot, &shared.filters, feeds);
        }
    }

    /// Copies the variables that are read from a snapshot.
    fn look(&self, shared: &mut Shared, variables: &Variables) {
        for tower in &self.towers {
            shared.snapshot.copy_some(variables, &own(tower).plan.snapshots);
        }
    }

    /// Runs `job` on every tower's plan concurrently and returns the first error.
    fn on_all_towers(
        &self,
        shared: &mut Shared,
        job: &(dyn Fn(&mut TowerRun, &mut TowerCx<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        let isa = shared.isa;
        let Shared { teams, memories, .. } = shared;
        let teams = teams.iter_mut().find(|c| c.teams.len() == self.towers.len());
        let TowerTeams { leaders, teams, communicator, .. } =
            teams.ok_or_else(|| Error::new(ErrorKind::Engine, "the program's teams are gone"))?;
        let (memories, teams, communicator) = (&*memories, &*teams, &**communicator);
        communicator.begin();
        communicator.set_program(&self.origins);
        leaders.run_on_every_member(&|i| {
            let mut running = communicator.enter(i);
            let mut team = own(&teams[i]);
            let participant = Participant { communicator, tower: i, exchange: self.exchange.as_ref() };
            let (at, tower) = (self.at.as_ref(), self.first_tower + i);
            let mut cx = TowerCx { team: &mut team, memory: &memories[i], isa, participant, at, tower };
            match catch_unwind(AssertUnwindSafe(|| job(&mut own(&self.towers[i]), &mut cx))) {
                Ok(outcome) => running.outcome = Some(outcome),
                Err(panic) => {
                    running.outcome = panic.downcast_ref::<Error>().cloned().map(Err);
                    drop(running);
                    resume_unwind(panic)
                }
            }
        });
        communicator.end()
    }

    /// Runs step by step to find the first result that is not finite, and returns the error that
    /// names it.
    pub(super) fn find_bad(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        diagnosis: &Diagnosis,
    ) -> Result<Option<Error>> {
        check_feeds(&self.feeds, feeds)?;
        let mut shared = lock(&self.shared)?;
        let variables = self.variables.take()?;
        // For each tower that found a bad result: the collectives before it, and the error.
        let found: Mutex<Vec<(usize, usize, Error)>> = Mutex::default();
        self.resolve(&mut shared, &variables, feeds);
        self.on_all_towers(&mut shared, &|tower, cx| {
            if let Some((collectives, e)) = tower.find_bad(cx, run, diagnosis)? {
                own(&found).push((collectives, cx.participant.tower, e));
            }
            Ok(())
        })?;
        if let Some(exchange) = &self.exchange {
            // The error ends this process; the others are still searching.
            exchange.all_say(true)?;
        }
        // A bad result of one tower is bad in all of them after the next collective.
        let first = own(&found).drain(..).min_by_key(|&(collectives, tower, _)| (collectives, tower));
        Ok(first.map(|(.., e)| e))
    }

    /// Runs once.
    pub(super) fn run(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        check_feeds(&self.feeds, feeds)?;
        let outcome = self.execute(&mut *lock(&self.shared)?, run, feeds, outputs);
        if let Some(at) = &self.at {
            at.set(None);
        }
        outcome
    }

    /// Returns whether kernels of the user run in this program.
    fn has_custom_kernels(&self) -> bool {
        let is_custom = |kernel: &CompiledKernel| matches!(kernel, CompiledKernel::Custom { .. });
        self.towers.iter().any(|tower| own(tower).plan.steps.iter().any(|step| is_custom(&step.kernel)))
    }

    /// Returns the origin of each step of each tower.
    pub(super) fn origins(&self) -> Arc<Origins> {
        self.origins.clone()
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
            self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, &finite, Phase::Apart, &[]))?;
            if !finite.load(Ordering::Relaxed) {
                return Ok(Outcome::NotFinite);
            }
            variables = self.variables.take()?;
        }
        self.finish(shared, &mut variables, run, &finite, feeds, outputs)
    }

    /// Returns whether all feeds are finite that must be.
    fn has_valid_feeds(&self, feeds: &[Feed<'_>]) -> bool {
        feeds.iter().enumerate().all(|(i, feed)| is_valid_feed(feed, || self.infinite.contains(&i)))
    }

    /// Returns whether a run exchanges tensors with other processes. Then it also checks its feeds.
    pub(super) fn communicates(&self) -> bool {
        self.exchange.is_some()
    }

    /// Runs the part that needs the variables themselves, and their update.
    fn finish(
        &self,
        shared: &mut Shared,
        variables: &mut Variables,
        run: &RunInfo,
        finite: &AtomicBool,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, finite, Phase::Compute, &[]))?;
        let mut is_finite =
            finite.load(Ordering::Relaxed) && self.will_be_finite(shared, variables, run, finite, feeds)?;
        if let Some(exchange) = &self.exchange {
            // All processes update, or none. A feed that is not finite must not keep this one from
            // the exchange, so it is checked here and not before the run.
            is_finite = exchange.all_say(is_finite && self.has_valid_feeds(feeds))?;
        }
        if !is_finite {
            return self.fail_check(variables);
        }
        self.towers.iter().for_each(|tower| shared.filters.set_packed(&own(tower).plan.filters, variables));
        self.fetch(shared, variables, feeds, outputs)?;
        let changes = |tower: &Mutex<TowerRun>| own(tower).plan.changes_variables();
        let is_changing = self.towers.iter().any(changes);
        variables.revision += u64::from(is_changing);
        self.towers.iter().for_each(|tower| own(tower).before_commit(variables));
        let measured = &variables.measured;
        let joint = self.commit_jointly(shared, run, finite, measured)?;
        self.on_all_towers(shared, &|tower, cx| match joint && cx.participant.tower == 0 {
            true => Ok(()),
            false => tower.run(cx, run, finite, Phase::Commit, measured),
        })?;
        self.towers.iter().for_each(|tower| own(tower).after_commit(variables, feeds, shared.isa));
        let staleness =
            if self.variables.are_shared() { variables.version - shared.snapshot.version } else { 0 };
        variables.version += u64::from(is_changing);
        Ok(Outcome::Committed { staleness })
    }

    /// Ends a run in which a value is not finite. Processes agree on the check and have the same
    /// values, so they all do the same.
    fn fail_check(&self, variables: &mut Variables) -> Result<Outcome> {
        let Some(next) = overflow_rules::next_values(&self.rules, |v| variables.read(v))? else {
            return Ok(Outcome::NotFinite);
        };
        next.iter().try_for_each(|(variable, value)| variables.write(*variable, value))?;
        variables.version += 1;
        Ok(Outcome::Skipped)
    }

    /// Updates the variables of the first tower with the threads of all towers, if they do so
    /// together. Returns whether they do.
    fn commit_jointly(
        &self,
        shared: &mut Shared,
        run: &RunInfo,
        finite: &AtomicBool,
        measured: &[Measured],
    ) -> Result<bool> {
        let isa = shared.isa;
        let (teams, memories) = teams_and_memories(shared, self.towers.len())?;
        let Some(joint) = &teams.joint else { return Ok(false) };
        let exchange = self.exchange.as_ref();
        let participant = Participant { communicator: &teams.communicator, tower: 0, exchange };
        let (at, tower) = (self.at.as_ref(), self.first_tower);
        let mut cx = TowerCx { team: &mut own(joint), memory: &memories[0], isa, participant, at, tower };
        own(&self.towers[0]).run(&mut cx, run, finite, Phase::Commit, measured)?;
        Ok(true)
    }

    /// Returns whether all next values are finite: by proof, or else by a trial run of the update.
    fn will_be_finite(
        &self,
        shared: &mut Shared,
        variables: &mut Variables,
        run: &RunInfo,
        finite: &AtomicBool,
        feeds: &[Feed<'_>],
    ) -> Result<bool> {
        let isa = shared.isa;
        let proven = |variables: &Variables| {
            // No short circuit: each tower records which of its proofs hold.
            self.towers.iter().filter(|tower| !own(tower).prove(variables, feeds, isa)).count() == 0
        };
        if proven(variables) {
            return Ok(true);
        }
        let looked = self.towers.iter().filter(|tower| own(tower).measure_variables(variables)).count() > 0;
        if looked && proven(variables) {
            return Ok(true);
        }
        for (tower, memory) in self.towers.iter().zip(&mut shared.memories) {
            memory.make_trial_room(&own(tower).plan)?;
        }
        self.on_all_towers(shared, &|tower, cx| tower.run(cx, run, finite, Phase::Trial, &[]))?;
        Ok(finite.load(Ordering::Relaxed))
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
            let from = run.plan.pointer(&f.loc, &shared.memories[tower], variables, &shared.snapshot, feeds);
            // SAFETY: `dense_fetches` made the value dense, `Placement` gave it its own memory until
            // the fetches are taken (`placement::lifetimes`), and `bytes` is its size: `fits`
            // compares the tensor with the plan, or it was just created from it.
            let there = unsafe { std::slice::from_raw_parts(from.cast_const(), bytes) };
            outputs[i].copy_from_bytes(if bytes == 0 { &[] } else { there })?;
        }
        Ok(())
    }
}

impl Executable for CpuProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        CpuProgram::run(self, run, feeds, outputs)
    }

    fn checks_feeds(&self) -> bool {
        CpuProgram::communicates(self)
    }

    fn communicates(&self) -> bool {
        CpuProgram::communicates(self)
    }

    fn plan_text(&self) -> String {
        let several = self.towers.len() > 1;
        let text = |(i, t): (usize, &Mutex<TowerRun>)| {
            let text = own(t).plan.text();
            if several { format!("tower {i}\n{text}") } else { text }
        };
        self.towers.iter().enumerate().map(text).collect()
    }

    fn planned_bytes(&self) -> Option<usize> {
        Some(self.towers.iter().map(|tower| own(tower).plan.arena_bytes).sum())
    }

    fn profile(&self) -> Vec<KernelTime> {
        self.towers.iter().flat_map(|tower| own(tower).profile().collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Fetch, Graph, Init, Tensor, TensorSpec, UPDATE_OPS, VariableSpec};
    use crate::kir::Origin;
    use crate::nn::{BatchNorm, Conv2d, Linear};
    use crate::optim::{Adam, Sgd, minimize};
    use crate::runtime::binding::Request;
    use crate::runtime::snapshot::Reading;
    use crate::tower::TowerContext;
    use std::collections::BTreeSet;

    /// A model: adds it to a graph and returns what to run, with the sizes of its input `x`.
    type Model = fn(&Graph, &Tensor) -> Vec<Fetch>;

    fn two_layers(g: &Graph, x: &Tensor) -> Vec<Fetch> {
        let t = TowerContext::training(g);
        let y = Linear::new(16).relu().apply(&t, "fc0", &x.mean_axes(&[1, 2]));
        let cost = Linear::new(5).apply(&t, "fc1", &y).log_softmax().square().mean();
        let train = minimize(&cost, &Adam::new(1e-3)).unwrap();
        vec![Fetch::from(&cost), Fetch::from(&train)]
    }

    fn convolution(g: &Graph, x: &Tensor) -> Vec<Fetch> {
        let t = TowerContext::training(g);
        let y = BatchNorm::new().relu().apply(&t, "bn", &Conv2d::new(4, 3).apply(&t, "conv", x)).max_pool(2);
        let train = minimize(&y.square().mean(), &Sgd::new(0.1)).unwrap();
        let updates = g.collection_ops(UPDATE_OPS);
        let train = g.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
        vec![Fetch::from(&train), Fetch::from(&y.transpose(&[3, 0, 1, 2]))]
    }

    fn recurrence(g: &Graph, x: &Tensor) -> Vec<Fetch> {
        let t = TowerContext::training(g);
        let w = t.variable(VariableSpec::new("w", [4, 300]).init(Init::Uniform(-0.1, 0.1)));
        let u = t.variable(VariableSpec::new("u", [300, 300]).init(Init::Uniform(-0.1, 0.1)));
        let h = x.mean_axes(&[1, 2]).matmul(&w);
        let h = (0..8).fold(h, |h, _| h.matmul(&u).tanh());
        let train = minimize(&h.square().mean(), &Sgd::new(0.1)).unwrap();
        vec![Fetch::from(&h), Fetch::from(&train), Fetch::from(&u.value().transpose(&[1, 0]))]
    }

    /// A variable that becomes a view of itself, one that becomes another, and one that becomes an
    /// input.
    fn assignments(g: &Graph, x: &Tensor) -> Vec<Fetch> {
        let t = TowerContext::training(g);
        let [a, b] = ["a", "b"].map(|name| t.variable(VariableSpec::new(name, [3, 3])));
        let c = t.variable(VariableSpec::new("c", [2, 8, 8, 4]));
        let ops = [a.assign(&b.value().transpose(&[1, 0])), b.assign(a.value()), c.assign(x)];
        ops.iter().map(Fetch::from).collect()
    }

    #[test]
    fn the_origin_of_every_kernel_is_a_line_of_the_user() {
        let models: [(&str, Model); 4] = [
            ("two layers", two_layers),
            ("convolution", convolution),
            ("recurrence", recurrence),
            ("assignments", assignments),
        ];
        let options = CpuOptions {
            threads: Some(1),
            isa: None,
            memory_limit: None,
            deadline: Duration::from_secs(60),
            profile: false,
            full_precision: false,
            dump_passes: false,
            process_group: None,
        };
        let mut wrong = BTreeSet::new();
        for (model, build) in models {
            let g = Graph::new();
            let x = g.placeholder(&TensorSpec::f32("x", [Some(2), Some(8), Some(8), Some(4)]));
            let fetches = build(&g, &x);
            let graph = Arc::new(g.freeze().unwrap());
            let feeds = vec![("x".to_string(), DType::F32, vec![2, 8, 8, 4])];
            let request = Request { feeds, fetches };
            for mode in [Mode::Fast, Mode::Inspect] {
                let lowered = Source::new(&graph, &request, Reading::InPlace).lower().unwrap();
                let mut engine = Engine::new(&options, &Turns::new(options.deadline));
                engine.create_variables(graph.variables(), 1).unwrap();
                let program = engine.plan(lowered, mode).unwrap();
                let tower = own(&program.towers[0]);
                assert!(!tower.plan.steps.is_empty() || mode == Mode::Inspect, "{model}");
                for step in &tower.plan.steps {
                    let Origin { name, site } = &*step.origin;
                    // This file is the user's here. A node knows its full name.
                    if site.file != file!() || !graph.nodes().iter().any(|n| n.name == *name) {
                        wrong.insert(format!("{model}: {} {name} at {site}", step.kernel.name()));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
