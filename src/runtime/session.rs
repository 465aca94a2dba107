//! A session: a frozen graph, its variables' values, and the programs made from it.

use super::binding::Request;
use super::executor::{Executable, Executor, Feed, Fork, KernelTime, Outcome, RunInfo};
use super::lowering::Source;
use super::null::NullEngine;
use super::reference::ReferenceEngine;
use super::snapshot::Reading;
use super::{Device, Interrupt, KernelProgress, Staging, Turns, cpu, xla};
use crate::graph::{Fetch, Frozen, Op, Tensor, Variable};
use crate::reference::StochasticRounding;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tensorpack_kernels::Isa;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// How a session is made.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Where to run.
    pub device: Device,
    /// Threads of a CPU device; `None`: one for each core.
    pub threads: Option<usize>,
    /// Instructions of a CPU device; `None`: the best there are.
    pub isa: Option<Isa>,
    /// What initial values and random operations are drawn from.
    pub seed: u64,
    /// The most bytes to allocate; `None`: what the machine or its cgroup allows.
    pub memory_limit: Option<usize>,
    /// The longest one tower waits for another before that is an error.
    pub deadline: Duration,
    /// How many programs (fetches and shapes) to keep; the least recently used goes.
    pub programs: usize,
    /// Whether to count the time of each kernel.
    pub profile: bool,
    /// Whether products of f32 keep all digits. Without, they are done as fast as the device can: with the 10 bits of TF32
    /// on NVIDIA's; on the CPU engine, convolutions of 3 by 3 with fewer products, whose rounding is a few times as large.
    pub full_precision: bool,
    /// Whether [`Session::plan_text`] begins with the program after each compiler pass, on the CPU engine.
    pub dump_passes: bool,
    /// How the reference device rounds results; `None`: not at all, beyond f64. Other devices reject it.
    pub stochastic_rounding: Option<StochasticRounding>,
    /// Whether two runs give the same bits on accelerators too, at some cost. The CPU engine always does.
    pub deterministic: bool,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            device: Device::Cpu(0),
            threads: None,
            isa: None,
            seed: 0,
            memory_limit: None,
            deadline: Duration::from_secs(300),
            programs: 16,
            profile: false,
            full_precision: false,
            dump_passes: false,
            stochastic_rounding: None,
            deterministic: false,
        }
    }
}

/// Runs a frozen graph. Every method takes `&self`; runs of several threads wait for each other.
pub struct Session {
    pub(super) graph: Arc<Frozen>,
    pub(super) options: SessionOptions,
    pub(super) reading: Reading,
    turns: Turns,
    at: KernelProgress,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) executor: Box<dyn Executor>,
    /// Most recently used last.
    pub(super) programs: Vec<CachedProgram>,
    /// Step runs so far: what random operations are keyed by.
    pub(super) run_index: u64,
    /// Plain runs since the last step run.
    pub(super) plain_runs: u64,
    /// The values that variables had before they were first changed, while they are recorded.
    undo_log: Option<BTreeMap<usize, HostTensor>>,
    /// How many updates by others there were while the last run computed.
    behind: u64,
    /// Set for good when a kernel panicked, or a tower never came back.
    poisoned: Option<Error>,
}

pub(super) struct CachedProgram {
    request: Request,
    /// The variables it updates.
    updates: Vec<usize>,
    pub(super) executable: Box<dyn Executable>,
}

/// What is fetched in a run, checked once so that it can be run often.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) fetches: Vec<Fetch>,
}

/// What can be fetched or run: tensors, operations, variables, and [`Fetch`]es made from them.
pub trait IntoFetch {
    /// The fetch.
    fn fetch(&self) -> Fetch;
}

macro_rules! into_fetch {
    ($($t:ty),*) => {$(impl IntoFetch for $t {
        fn fetch(&self) -> Fetch { Fetch::from(self) }
    })*};
}
into_fetch!(Tensor, Op, Variable, Fetch);

/// The most inputs that one run is fed with, those of all towers together.
pub(crate) const MAX_FEEDS: usize = 64;

/// Which numbers a run draws from random streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    /// A run of training: the n-th one draws the n-th numbers, after a resume too.
    Step,
    /// Any other run: draws from a stream of its own.
    Plain,
}

impl Session {
    /// A session with default options.
    pub fn new(graph: Frozen) -> Result<Session> {
        Session::with(graph, SessionOptions::default())
    }

    /// A session on the device the options name, with variables at their first values.
    pub fn with(graph: Frozen, options: SessionOptions) -> Result<Session> {
        graph.take_late_error()?;
        if options.stochastic_rounding.is_some() && options.device != Device::Reference {
            let why = format!("{} cannot round stochastically", options.device);
            return Err(Error::new(ErrorKind::Unsupported, why).note("use the device `reference`"));
        }
        let turns = Turns::new(options.deadline);
        let mut executor: Box<dyn Executor> = match options.device {
            Device::Cpu(_) => cpu::cpu_executor(
                &cpu::CpuOptions {
                    threads: options.threads,
                    isa: options.isa,
                    memory_limit: options.memory_limit,
                    deadline: options.deadline,
                    profile: options.profile,
                    full_precision: options.full_precision,
                    dump_passes: options.dump_passes,
                },
                &turns,
            ),
            Device::Null => Box::new(NullEngine::new(options.memory_limit)),
            Device::Reference => {
                Box::new(ReferenceEngine::new(options.memory_limit, options.stochastic_rounding))
            }
            Device::Xla { platform, index } => {
                let xla = xla::XlaOptions {
                    memory_limit: options.memory_limit,
                    deadline: options.deadline,
                    full_precision: options.full_precision,
                    deterministic: options.deterministic,
                };
                Box::new(xla::XlaEngine::open(platform, index, xla)?)
            }
        };
        executor.create_variables(graph.variables(), options.seed)?;
        Ok(Session {
            graph: Arc::new(graph),
            options,
            reading: Reading::InPlace,
            turns,
            at: KernelProgress::new(),
            state: Mutex::new(State::new(executor)),
        })
    }

    /// A session for tower `tower` of `towers` that shares this one's graph and variables, and runs at the same time as
    /// the others: each run computes on a snapshot of the variables, then has them for itself for as long as it takes to
    /// update them. Whatever only updates need, such as an optimizer's state, is read then.
    ///
    /// This session's own runs, reads and writes take their turn likewise; [`Turns`] can hold back the towers.
    pub fn fork(&self, tower: usize, towers: usize) -> Result<Session> {
        let at = KernelProgress::new();
        let executor = self.lock()?.executor.fork(Fork { tower, towers, at: at.clone() })?;
        Ok(Session {
            graph: self.graph.clone(),
            options: self.options.clone(),
            reading: Reading::Snapshot,
            turns: self.turns.clone(),
            at,
            state: Mutex::new(State::new(executor)),
        })
    }

    /// Who may touch the variables when, if this session was [forked](Session::fork).
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Where this session is in its run.
    pub(crate) fn at(&self) -> &KernelProgress {
        &self.at
    }

    /// The longest one tower waits for another.
    pub(crate) fn deadline(&self) -> Duration {
        self.options.deadline
    }

    /// How many updates by others there were while the last run computed: 0 unless this is a [fork](Session::fork).
    #[doc(alias = "staleness")]
    pub fn behind(&self) -> Result<u64> {
        Ok(self.lock()?.behind)
    }

    /// The graph.
    pub fn graph(&self) -> &Frozen {
        &self.graph
    }

    /// Runs once and returns the value of every *tensor* in `fetches`, in order; operations have none. `feeds` are
    /// inputs by name. Nothing beside the run happens: no hook, no summary, no step is counted.
    pub fn run(&self, fetches: &[&dyn IntoFetch], feeds: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>> {
        let prepared = self.prepare(fetches)?;
        let mut outputs = Vec::new();
        self.run_prepared(&prepared, feeds, &mut outputs)?;
        Ok(outputs)
    }

    /// Checks what is to be fetched, for running it often.
    pub fn prepare(&self, fetches: &[&dyn IntoFetch]) -> Result<Prepared> {
        self.graph.take_late_error()?;
        let fetches: Vec<Fetch> = fetches.iter().map(|f| f.fetch()).collect();
        for f in &fetches {
            if f.graph != self.graph.uid() {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!("{} belongs to another graph than this session's", f.name),
                ));
            }
            if f.node.0 as usize >= self.graph.nodes().len() {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!("{} could not be built, so it cannot be run", f.name),
                ));
            }
        }
        Ok(Prepared { fetches })
    }

    /// [`Session::run`] into values the caller keeps: overwritten in place where they fit, so that a loop of runs
    /// allocates nothing.
    pub fn run_prepared(
        &self,
        what: &Prepared,
        feeds: &[(&str, &HostTensor)],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        self.run_as(RunKind::Plain, &what.fetches, feeds, outputs)
    }

    pub(super) fn run_as(
        &self,
        kind: RunKind,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        self.graph.take_late_error()?;
        let mut state = self.lock()?;
        let at = state.program(self, fetches, feeds)?;
        if !state.programs[at].executable.checks_feeds() {
            check_finite_feeds(&self.graph, feeds)?;
        }
        let draw = match kind {
            RunKind::Step => state.run_index,
            // The upper half of all draws belongs to plain runs.
            RunKind::Plain => 1 << 63 | state.run_index << 20 | state.plain_runs,
        };
        let run = RunInfo { seed: self.options.seed, draw };
        let mut values: [Feed<'_>; MAX_FEEDS] = [EMPTY.get_or_init(|| HostTensor::scalar(0u8)); MAX_FEEDS];
        if feeds.len() > MAX_FEEDS {
            return Err(Error::argument(format!(
                "at most {MAX_FEEDS} inputs can be fed, not {}",
                feeds.len()
            )));
        }
        values.iter_mut().zip(feeds).for_each(|(v, (_, t))| *v = t);
        state.record_undo(at)?;
        let executable = &mut state.programs[at].executable;
        let ran = catch_unwind(AssertUnwindSafe(|| executable.run(&run, &values[..feeds.len()], outputs)));
        let ran = ran.unwrap_or_else(|panic| Err(state.poison(&*panic)));
        let outcome = ran.map_err(|e| state.end_if_lost(e))?;
        let Outcome::Committed { behind } = outcome else {
            return Err(self.bad_run(&mut state, fetches, feeds, &run));
        };
        state.behind = behind;
        match kind {
            RunKind::Step => (state.run_index, state.plain_runs) = (state.run_index + 1, 0),
            RunKind::Plain => state.plain_runs += 1,
        }
        Ok(())
    }

    /// The value of a variable.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let index = self.variable(name)?;
        self.lock()?.executor.read(index)
    }

    /// Gives a variable a value of its own type and sizes.
    pub fn write(&self, name: &str, value: &HostTensor) -> Result<()> {
        let index = self.variable(name)?;
        let v = &self.graph.variables()[index];
        if (v.dtype, v.sizes.as_slice()) != (value.dtype(), value.sizes()) {
            return Err(Error::shape(format!(
                "the variable {name} is {}{:?}, not {}{:?}",
                v.dtype,
                v.sizes,
                value.dtype(),
                value.sizes()
            ))
            .at(v.site));
        }
        let mut state = self.lock()?;
        state.record_undo_of(index)?;
        state.executor.write(index, value)
    }

    /// Starts to record the value that each variable has before it is first changed, by a write or by a run.
    pub(crate) fn begin_undo_log(&self) -> Result<()> {
        self.lock()?.undo_log = Some(BTreeMap::new());
        Ok(())
    }

    /// Stops recording. Returns the names of the variables that were changed, with the values they had before.
    pub(crate) fn end_undo_log(&self) -> Result<Vec<(String, HostTensor)>> {
        let log = self.lock()?.undo_log.take().unwrap_or_default();
        let name = |index: usize| self.graph.variables()[index].name.clone();
        Ok(log.into_iter().map(|(index, value)| (name(index), value)).collect())
    }

    /// The plan of a run as text: what fused, what is in place, how much memory.
    pub fn plan_text(&self, fetches: &[&dyn IntoFetch], feeds: &[(&str, &HostTensor)]) -> Result<String> {
        let prepared = self.prepare(fetches)?;
        let mut state = self.lock()?;
        let at = state.program(self, &prepared.fetches, feeds)?;
        Ok(state.programs[at].executable.plan_text())
    }

    /// Where the time of all runs went, if the session was made to count.
    pub fn profile(&self) -> Result<Vec<KernelTime>> {
        Ok(self.lock()?.programs.iter().flat_map(|p| p.executable.profile()).collect())
    }

    /// Cuts waits for a compiler short when this is set; the error is then of kind [`ErrorKind::Interrupted`].
    pub(crate) fn watch(&self, interrupt: &Interrupt) -> Result<()> {
        self.lock()?.executor.watch(interrupt);
        Ok(())
    }

    /// How to send ahead what runs will be fed with; `None` where that is of no use, as on the CPU engine.
    #[doc(alias = "StagingInput")]
    pub fn staging(&self) -> Result<Option<Staging>> {
        Ok(self.lock()?.executor.staging())
    }

    /// The number of step runs so far.
    pub fn run_index(&self) -> Result<u64> {
        Ok(self.lock()?.run_index)
    }

    /// Continues counting step runs from `run_index`, as a resumed run does.
    pub fn set_run_index(&self, run_index: u64) -> Result<()> {
        let mut state = self.lock()?;
        (state.run_index, state.plain_runs) = (run_index, 0);
        Ok(())
    }

    /// Makes the program of a run now, so that the run itself does not wait for it.
    pub(super) fn compile(&self, fetches: &[Fetch], feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.lock()?.program(self, fetches, feeds).map(|_| ())
    }

    fn variable(&self, name: &str) -> Result<usize> {
        self.graph
            .variables()
            .iter()
            .position(|v| v.name == name)
            .ok_or_else(|| Error::new(ErrorKind::Name, format!("there is no variable named {name:?}")))
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        match &state.poisoned {
            Some(e) => Err(e.clone()),
            None => Ok(state),
        }
    }
}

static EMPTY: std::sync::OnceLock<HostTensor> = std::sync::OnceLock::new();

impl State {
    fn new(executor: Box<dyn Executor>) -> State {
        State {
            executor,
            programs: Vec::new(),
            run_index: 0,
            plain_runs: 0,
            undo_log: None,
            behind: 0,
            poisoned: None,
        }
    }

    /// Records the values of the variables that a program is about to update, if an undo log is kept.
    fn record_undo(&mut self, program: usize) -> Result<()> {
        if self.undo_log.is_none() {
            return Ok(());
        }
        let updates = self.programs[program].updates.clone();
        updates.into_iter().try_for_each(|index| self.record_undo_of(index))
    }

    /// Records the value of a variable that is about to change, if an undo log is kept and does not have it yet.
    fn record_undo_of(&mut self, index: usize) -> Result<()> {
        if let Some(log) = &mut self.undo_log
            && !log.contains_key(&index)
        {
            log.insert(index, self.executor.read(index)?);
        }
        Ok(())
    }

    /// Ends the session: who knows what a kernel that panicked left behind. The engine says which one, if it can.
    pub(super) fn poison(&mut self, panic: &(dyn std::any::Any + Send)) -> Error {
        let unknown = || Error::new(ErrorKind::Engine, format!("the engine panicked: {}", panic_text(panic)));
        let e = panic.downcast_ref::<Error>().cloned().unwrap_or_else(unknown);
        self.poisoned.get_or_insert(e.note("this session cannot go on; the last checkpoint stands")).clone()
    }

    /// Ends the session if the engine is lost, with the error of the run that lost it.
    pub(super) fn end_if_lost(&mut self, e: Error) -> Error {
        if self.executor.lost() {
            self.poisoned.get_or_insert(e.clone());
        }
        e
    }

    /// The place of the program for these fetches and shapes, made if there is none yet.
    pub(super) fn program(
        &mut self,
        session: &Session,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<usize> {
        let there = self.programs.iter().position(|p| matches(&p.request, fetches, feeds));
        let program = match there {
            // The common case: the same as last time.
            Some(at) if at + 1 == self.programs.len() => return Ok(at),
            Some(at) => self.programs.remove(at),
            None => {
                let request = request(fetches, feeds);
                let source = Source::new(&session.graph, &request, session.reading);
                let updates = source.updates()?;
                let executable = self.executor.compile(&source)?;
                if self.programs.len() >= session.options.programs.max(1) {
                    self.programs.remove(0);
                }
                CachedProgram { request, updates, executable }
            }
        };
        self.programs.push(program);
        Ok(self.programs.len() - 1)
    }
}

pub(super) fn request(fetches: &[Fetch], feeds: &[(&str, &HostTensor)]) -> Request {
    let feeds = feeds.iter().map(|(name, t)| (name.to_string(), t.dtype(), t.sizes().to_vec())).collect();
    Request { fetches: fetches.to_vec(), feeds }
}

/// Whether a request is for just these, found out without allocating.
fn matches(request: &Request, fetches: &[Fetch], feeds: &[(&str, &HostTensor)]) -> bool {
    request.fetches == fetches
        && request.feeds.len() == feeds.len()
        && request
            .feeds
            .iter()
            .zip(feeds)
            .all(|((name, dtype, sizes), (n, t))| name == n && *dtype == t.dtype() && sizes == t.sizes())
}

pub(super) fn is_finite(t: &HostTensor) -> bool {
    // SAFETY: the bytes are the tensor's elements.
    unsafe { tensorpack_kernels::all_finite(Isa::detect(), t.dtype(), t.as_bytes().as_ptr(), t.len()) }
}

pub(super) fn check_finite_feeds(graph: &Frozen, feeds: &[(&str, &HostTensor)]) -> Result<()> {
    for (name, t) in feeds {
        if !t.dtype().is_float() || is_finite(t) {
            continue;
        }
        let infinite = graph.takes_infinities(name);
        if infinite && !has_nan(t) {
            continue;
        }
        let bad = |x: &f64| if infinite { x.is_nan() } else { !x.is_finite() };
        let at = t.to_f64_vec().iter().position(bad).unwrap_or(0);
        let what =
            format!("what is fed to {name} holds a NaN or an infinity, at element {at} of {:?}", t.sizes());
        let e = Error::new(ErrorKind::NotFinite, what);
        return Err(match infinite {
            true => e,
            false => e.note("an input that is a mask may be declared with `TensorSpec::allow_infinite`"),
        });
    }
    Ok(())
}

/// Returns whether a float tensor holds a NaN, without allocating for f32 and f64.
fn has_nan(t: &HostTensor) -> bool {
    match t.dtype() {
        DType::F32 => t.as_slice::<f32>().is_ok_and(|v| v.iter().any(|x| x.is_nan())),
        DType::F64 => t.as_slice::<f64>().is_ok_and(|v| v.iter().any(|x| x.is_nan())),
        _ => t.to_f64_vec().iter().any(|x| x.is_nan()),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap_or_else(|| "no message".into())
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}, {} nodes)", self.options.device, self.graph.nodes().len())
    }
}
