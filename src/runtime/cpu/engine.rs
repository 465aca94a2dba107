//! The engine: a team of threads, the variables, one arena, and programs that run on them.

use super::memory::{Block, padded};
use super::plan::{Base, Loc, Mode, Plan};
use super::variables::Variables;
use super::work::Memory;
use crate::graph::VariableInfo;
use crate::kir::{BufferKind, Program};
use crate::runtime::executor::{Executable, Executor, Feed, KernelTime, Outcome, RunInfo};
use crate::runtime::{Lowered, memory_limit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tensorpack_kernels::{Isa, Team};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How the CPU engine works.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads of the team; `None`: one for each core.
    pub threads: Option<usize>,
    /// The instructions to use; `None`: the best there are.
    pub isa: Option<Isa>,
    /// The most bytes to allocate; `None`: what the machine or its cgroup allows.
    pub memory_limit: Option<usize>,
    /// Whether to count the time of each kernel.
    pub profile: bool,
}

/// A CPU engine.
pub fn cpu_executor(options: &CpuOptions) -> Box<dyn Executor> {
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    Box::new(Engine {
        shared: Arc::new(Mutex::new(Shared {
            team: Team::new(threads),
            variables: Variables::default(),
            arena: None,
            scratch: Vec::new(),
            scratch_bytes: 0,
            isa: options.isa.map_or_else(Isa::detect, |i| i.min(Isa::detect())),
        })),
        limit: options.memory_limit,
        profile: options.profile,
    })
}

struct Engine {
    shared: Arc<Mutex<Shared>>,
    limit: Option<usize>,
    profile: bool,
}

/// What all programs of an engine use, one at a time.
struct Shared {
    team: Team,
    variables: Variables,
    arena: Option<Block>,
    scratch: Vec<Block>,
    scratch_bytes: usize,
    isa: Isa,
}

impl Engine {
    fn lock(&self) -> Result<MutexGuard<'_, Shared>> {
        lock(&self.shared)
    }

    fn plan(&self, mut program: Program, mode: Mode) -> Result<CpuProgram> {
        let mut shared = self.lock()?;
        if mode == Mode::Fast {
            self.fold_constants(&mut program, &mut shared)?;
        }
        self.ready(program, mode, &mut shared)
    }

    /// A plan with all the memory it needs.
    fn ready(&self, program: Program, mode: Mode, shared: &mut Shared) -> Result<CpuProgram> {
        let plan = Plan::new(program, &shared.variables, mode)?;
        let arena_now = shared.arena.as_ref().map_or(0, Block::len);
        let scratch = padded(plan.scratch_bytes).max(shared.scratch_bytes);
        let more = plan
            .arena_bytes
            .saturating_sub(arena_now)
            .saturating_add((scratch - shared.scratch_bytes).saturating_mul(shared.team.len()));
        memory_limit::check(more, "this program", self.limit)?;
        if plan.arena_bytes > arena_now || shared.arena.is_none() {
            shared.arena = None;
            shared.arena = Some(Block::zeroed(plan.arena_bytes)?);
        }
        if scratch > shared.scratch_bytes || shared.scratch.is_empty() {
            shared.scratch = (0..shared.team.len()).map(|_| Block::zeroed(scratch)).collect::<Result<_>>()?;
            shared.scratch_bytes = scratch;
        }
        let times = if self.profile { vec![Tally::default(); plan.steps.len()] } else { Vec::new() };
        Ok(CpuProgram { plan, shared: self.shared.clone(), reads: Vec::new(), writes: Vec::new(), scratch: Vec::new(), times })
    }

    /// Runs kernels that read constants alone now, and makes their results constants.
    fn fold_constants(&self, program: &mut Program, shared: &mut Shared) -> Result<()> {
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
        early.fetches = made
            .iter()
            .map(|&b| crate::kir::View::dense(b, early.buffer(b).dtype, &early.buffer(b).sizes))
            .collect();
        let mut ready = self.ready(early, Mode::Inspect, shared)?;
        let mut values = Vec::new();
        ready.execute(shared, &RunInfo { seed: 0, draw: 0 }, &[], &mut values)?;
        for (b, value) in made.into_iter().zip(values) {
            program.buffers[b.0 as usize].kind = BufferKind::Constant(value);
        }
        Ok(())
    }
}

fn lock(shared: &Mutex<Shared>) -> Result<MutexGuard<'_, Shared>> {
    shared
        .lock()
        .map_err(|_| Error::new(ErrorKind::Engine, "the engine stopped after a panic in a kernel; its state is lost"))
}

impl Executor for Engine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        self.lock()?.variables = Variables::new(variables, seed, self.limit)?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        self.lock()?.variables.read(index)
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.lock()?.variables.write(index, value)
    }

    fn compile(&mut self, lowered: Lowered) -> Result<Box<dyn Executable>> {
        Ok(Box::new(self.plan(lowered.program, Mode::Fast)?))
    }

    fn find_bad(&mut self, lowered: Lowered, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Option<Error>> {
        let mut program = self.plan(lowered.program, Mode::Inspect)?;
        let mut shared = self.lock()?;
        program.find_bad(&mut shared, run, feeds, &lowered.hints)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    runs: u64,
    seconds: f64,
}

/// A planned program. The tables hold the pointers of one run and are kept only for their room.
struct CpuProgram {
    plan: Plan,
    shared: Arc<Mutex<Shared>>,
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
    scratch: Vec<*mut u8>,
    times: Vec<Tally>,
}

// SAFETY: the pointers in the tables are written at the beginning of every run, before they are used, by the thread
// that holds the engine's lock.
unsafe impl Send for CpuProgram {}

impl CpuProgram {
    /// Fills the tables with where everything is in this run.
    fn resolve(&mut self, shared: &Shared, feeds: &[Feed<'_>]) {
        let arena = shared.arena.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr);
        let constants = &self.plan.constants;
        let pointer = |loc: &Loc| -> *mut u8 {
            let base = match loc.base {
                Base::Arena => arena,
                Base::Slab(i) => shared.variables.slab(i),
                // Feeds and constants are never written: no step has one among its outputs.
                Base::Feed(i) => feeds[i].as_bytes().as_ptr().cast_mut(),
                Base::Constant(i) => constants[i].as_bytes().as_ptr().cast_mut(),
            };
            base.wrapping_add(loc.offset)
        };
        self.reads.clear();
        self.writes.clear();
        for step in &self.plan.steps {
            self.reads.extend(step.reads.iter().map(|loc| pointer(loc).cast_const()));
            self.writes.extend(step.writes.iter().map(&pointer));
        }
        self.scratch.clear();
        self.scratch.extend(shared.scratch.iter().map(Block::as_ptr));
    }

    /// Runs one step.
    fn step(&mut self, i: usize, at: &mut Cursor, shared: &mut Shared, run: &RunInfo, finite: &AtomicBool) -> Result<()> {
        let step = &self.plan.steps[i];
        let arena = shared.arena.as_ref().map_or(std::ptr::null_mut(), Block::as_ptr);
        let memory = Memory {
            reads: &self.reads[at.read..at.read + step.reads.len()],
            writes: &self.writes[at.write..at.write + step.writes.len()],
            forms: &step.forms,
            checked: &step.checked,
            shared: arena.wrapping_add(step.shared.unwrap_or(0)),
            scratch: &self.scratch,
            scratch_bytes: shared.scratch_bytes,
            finite,
            isa: shared.isa,
            seed: run.seed,
            draw: run.draw,
        };
        at.read += step.reads.len();
        at.write += step.writes.len();
        let started = (!self.times.is_empty()).then(Instant::now);
        // SAFETY: the plan gave every buffer its own place for as long as it lives, `resolve` has just filled the
        // tables, and the lock keeps everyone else away.
        unsafe { step.work.run(&mut shared.team, &memory) }
            .map_err(|e| e.within(&step.origin.name).at(step.origin.site))?;
        if let Some(started) = started {
            self.times[i].runs += 1;
            self.times[i].seconds += started.elapsed().as_secs_f64();
        }
        Ok(())
    }

    fn execute(
        &mut self,
        shared: &mut Shared,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        self.resolve(shared, feeds);
        let finite = AtomicBool::new(true);
        let mut at = Cursor::default();
        for i in 0..self.plan.commit_from {
            self.step(i, &mut at, shared, run, &finite)?;
        }
        if !finite.load(Ordering::Relaxed) {
            return Ok(Outcome::NotFinite);
        }
        self.fetch(shared, feeds, outputs)?;
        for i in self.plan.commit_from..self.plan.steps.len() {
            self.step(i, &mut at, shared, run, &finite)?;
        }
        Ok(Outcome::Committed)
    }

    fn fetch(&self, shared: &Shared, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<()> {
        outputs.truncate(self.plan.fetches.len());
        for (i, f) in self.plan.fetches.iter().enumerate() {
            let fits = outputs.get(i).is_some_and(|t| t.dtype() == f.dtype && t.sizes() == f.sizes);
            if !fits {
                let fresh = HostTensor::zeros(f.dtype, f.sizes.as_slice())?;
                match outputs.get_mut(i) {
                    Some(t) => *t = fresh,
                    None => outputs.push(fresh),
                }
            }
            let bytes = outputs[i].len() * f.dtype.size();
            let base: *const u8 = match f.loc.base {
                Base::Arena => shared.arena.as_ref().map_or(std::ptr::null(), |b| b.as_ptr().cast_const()),
                Base::Slab(s) => shared.variables.slab(s),
                Base::Feed(n) => feeds[n].as_bytes().as_ptr(),
                Base::Constant(n) => self.plan.constants[n].as_bytes().as_ptr(),
            };
            // SAFETY: the plan placed the value here, and it lives until the fetches are taken.
            let there = unsafe { std::slice::from_raw_parts(base.wrapping_add(f.loc.offset), bytes) };
            outputs[i].copy_from_bytes(if bytes == 0 { &[] } else { there })?;
        }
        Ok(())
    }

    /// Runs step by step and looks at every result.
    fn find_bad(
        &mut self,
        shared: &mut Shared,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        hints: &std::collections::HashMap<String, String>,
    ) -> Result<Option<Error>> {
        self.resolve(shared, feeds);
        let (ignored, mut at) = (AtomicBool::new(true), Cursor::default());
        for i in 0..self.plan.commit_from {
            let first = at.write;
            self.step(i, &mut at, shared, run, &ignored)?;
            let step = &self.plan.steps[i];
            for (k, &(dtype, n)) in step.forms.iter().enumerate() {
                // SAFETY: the step has just written n elements there.
                let ok = unsafe { tensorpack_kernels::all_finite(shared.isa, dtype, self.writes[first + k], n) };
                if !ok {
                    let name = &step.origin.name;
                    let mut e = Error::new(ErrorKind::NotFinite, format!("{name} is not finite: it holds a NaN or an infinity"))
                        .at(step.origin.site);
                    if let Some(hint) = hints.get(name) {
                        e = e.note(hint.clone());
                    }
                    return Ok(Some(e));
                }
            }
        }
        Ok(None)
    }
}

/// How far the tables have been used.
#[derive(Default)]
struct Cursor {
    read: usize,
    write: usize,
}

impl Executable for CpuProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let shared = self.shared.clone();
        let mut shared = lock(&shared)?;
        self.execute(&mut shared, run, feeds, outputs)
    }

    fn plan_text(&self) -> String {
        self.plan.text()
    }

    fn profile(&self) -> Vec<KernelTime> {
        let timed = self.plan.steps.iter().zip(&self.times);
        timed
            .map(|(step, t)| KernelTime {
                name: format!("{} {}", step.work.name(), step.origin.name),
                runs: t.runs,
                seconds: t.seconds,
                flops: step.work.flops(),
                bytes: step.bytes,
            })
            .collect()
    }
}
