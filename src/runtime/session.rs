//! A session: a frozen graph, the values of its variables, and its compiled programs.

use super::binding::Request;
use super::captured_value::{CapturePlace, CapturedValue};
use super::executor::{
    DeviceMemory, Executable, Executor, Feed, Fork, KernelTime, Outcome, RunInfo, SavedValue,
};
use super::fit_memory;
use super::lowering::Source;
use super::overwritten::OverwrittenValues;
use super::several_steps::SeveralSteps;
use super::snapshot::Reading;
use super::{
    Device, DeviceEvents, DeviceProfiler, Interrupt, KernelProgress, Staging, Turns, overflow_rules,
};
use crate::distributed::ProcessGroup;
use crate::graph::{Fetch, Frozen, Op, Precision, Tensor, Variable, nearest_names};
use crate::kir::Shards;
use crate::reference::StochasticRounding;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tensorpack_kernels::Isa;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, Site};

/// The options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The device to run on. Defaults to `cpu:0`.
    pub device: Device,
    /// Threads of a CPU device. Defaults to one per core.
    pub threads: Option<usize>,
    /// The instruction set of a CPU device. Defaults to the best that the machine has.
    pub isa: Option<Isa>,
    /// The seed of initial values and random operations.
    pub seed: u64,
    /// The memory limit in bytes. Defaults to what the machine or its cgroup allows.
    pub memory_limit: Option<usize>,
    /// The timeout of waits for another tower or a device.
    pub deadline: Duration,
    /// The number of compiled programs (one per fetches and shapes) to cache. The least recently
    /// used one is evicted.
    pub programs: usize,
    /// The size limit in bytes of the cache of compiled programs on disk (XLA only), from which the
    /// least recently used ones are removed. Defaults to the environment variable
    /// `TENSORPACK_COMPILE_CACHE_BYTES`, and that to 2 GiB. 0 turns the cache off.
    pub compile_cache_bytes: Option<u64>,
    /// Whether to measure the time of each kernel; on XLA, of the host's work for each launch.
    pub profile: bool,
    /// Whether f32 products are computed in full precision. Otherwise the fastest algorithm is
    /// used: TF32 (10 mantissa bits) on NVIDIA GPUs; Winograd for 3x3 convolutions, and for 4x4
    /// ones with stride 2, on the CPU engine, whose rounding error is two to eight times as large.
    pub full_precision: bool,
    /// Whether [`Session::plan_text`] starts with the program after each compiler pass (CPU engine
    /// only).
    pub dump_passes: bool,
    /// How the reference device rounds results. Defaults to no rounding beyond f64. Other devices
    /// reject it.
    pub stochastic_rounding: Option<StochasticRounding>,
    /// Whether results are bit-reproducible on accelerators, at some cost. On the CPU engine they
    /// always are.
    pub deterministic: bool,
    /// The processes that run the same graph on their own towers. Defaults to none. A run with
    /// all-reduces waits for the same run in all of them.
    pub process_group: Option<Arc<ProcessGroup>>,
    /// Ends waits for a plugin or a compiler with an error of kind [`ErrorKind::Interrupted`] when
    /// it is set. Defaults to a flag of its own; trainers replace it by one that signals set.
    pub interrupt: Interrupt,
}

impl SessionOptions {
    /// Returns the options for a session whose graph was built in this precision: in
    /// [`Precision::F32`] XLA devices multiply with all digits. Trainers and predictors do this
    /// themselves.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> SessionOptions {
        // The CPU engine has no TF32; there the option is about Winograd convolutions.
        let all_digits = precision == Precision::F32 && matches!(self.device, Device::Xla { .. });
        SessionOptions { full_precision: self.full_precision || all_digits, ..self }
    }
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            device: Device::default(),
            threads: None,
            isa: None,
            seed: 0,
            memory_limit: None,
            deadline: Duration::from_secs(300),
            programs: 16,
            compile_cache_bytes: None,
            profile: false,
            full_precision: false,
            dump_passes: false,
            stochastic_rounding: None,
            deterministic: false,
            process_group: None,
            interrupt: Interrupt::new(),
        }
    }
}

/// Runs a frozen graph. All methods take `&self`; concurrent calls are serialized.
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
    /// The number of step runs so far, which is part of the key of random operations.
    pub(super) run_index: u64,
    /// Plain runs since the last step run.
    pub(super) plain_runs: u64,
    /// The values that variables had before they were first changed, if an undo log is kept.
    undo_log: Option<BTreeMap<usize, Box<dyn SavedValue>>>,
    /// The values that writes have replaced while runs were in flight.
    overwritten: OverwrittenValues,
    /// The staleness of the last run: the number of updates by others while it computed.
    staleness: u64,
    /// Set permanently when a kernel panics or a tower hangs.
    poisoned: Option<Error>,
    /// Steps that wait for a launch of several, and launches in flight.
    pub(super) several: SeveralSteps,
}

pub(super) struct CachedProgram {
    pub(super) request: Arc<Request>,
    /// The variables it updates.
    updates: Vec<usize>,
    pub(super) executable: Box<dyn Executable>,
}

/// Checked fetches, for repeated runs.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) fetches: Vec<Fetch>,
}

/// A type that can be fetched or run: tensors, operations, variables, and [`Fetch`]es of them.
pub trait IntoFetch {
    /// Returns the fetch.
    fn fetch(&self) -> Fetch;
}

macro_rules! into_fetch {
    ($($t:ty),*) => {$(impl IntoFetch for $t {
        fn fetch(&self) -> Fetch { Fetch::from(self) }
    })*};
}
into_fetch!(Tensor, Op, Variable, Fetch);

/// The maximum number of feeds of a run, over all towers.
pub(crate) const MAX_FEEDS: usize = 64;

/// The kind of a run, which determines its random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    /// A training step: the n-th one makes the n-th draw, also after a resume.
    Step,
    /// Any other run, which has its own draws.
    Plain,
}

impl Session {
    /// Creates a session with default options.
    pub fn new(graph: Frozen) -> Result<Session> {
        Session::with(graph, SessionOptions::default())
    }

    /// Creates a session on the device of the options, and initializes its variables.
    pub fn with(graph: Frozen, options: SessionOptions) -> Result<Session> {
        graph.take_late_error()?;
        let engine = options.device.engine()?;
        if options.stochastic_rounding.is_some() && !engine.rounds_stochastically() {
            let why = format!("{} cannot round stochastically", options.device);
            return Err(Error::new(ErrorKind::Unsupported, why).note("use the device `reference`"));
        }
        if options.process_group.as_ref().is_some_and(|g| g.size() > 1) && !engine.supports_process_groups() {
            let why = format!("{} cannot train together with other processes", options.device);
            return Err(Error::new(ErrorKind::Unsupported, why).note("use cpu:N or xla:cuda:N"));
        }
        options.stochastic_rounding.map_or(Ok(()), StochasticRounding::check)?;
        let turns = Turns::new(options.deadline);
        let mut executor = engine.create(&graph, &options, &turns)?;
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

    /// Creates a session for tower `tower` of `towers` that shares the graph and the variables of
    /// this one and runs concurrently. Each run computes on a snapshot of the variables, and then
    /// has exclusive access to them while it updates them. State that only updates need, such as an
    /// optimizer's, is read during the update.
    ///
    /// The runs, reads and writes of this session take turns with those of the towers; [`Turns`]
    /// can hold the towers back.
    #[track_caller]
    pub fn fork(&self, tower: usize, towers: usize) -> Result<Session> {
        if tower >= towers {
            let why = format!("there is no tower {tower} of {towers}: towers are counted from 0");
            return Err(Error::argument(why).at(Site::caller()));
        }
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

    /// Returns the turns of this session and its [forks](Session::fork) with the variables.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Returns the kernel that this session is executing.
    pub(crate) fn at(&self) -> &KernelProgress {
        &self.at
    }

    /// Returns the timeout of waits for another tower.
    pub(crate) fn deadline(&self) -> Duration {
        self.options.deadline
    }

    /// Returns the staleness of the last run: the number of updates by others while it computed. It
    /// is 0 unless this session is a [fork](Session::fork).
    #[doc(alias = "behind")]
    pub fn staleness(&self) -> Result<u64> {
        Ok(self.lock()?.staleness)
    }

    /// Returns the options it was created with.
    pub(crate) fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Frozen {
        &self.graph
    }

    /// Runs once and returns the value of every *tensor* in `fetches`, in order; operations have
    /// none. `feeds` are inputs by name. This is a plain run: no hooks, no summaries, no step is
    /// counted.
    pub fn run(&self, fetches: &[&dyn IntoFetch], feeds: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>> {
        let prepared = self.prepare(fetches)?;
        let mut outputs = Vec::new();
        self.run_prepared(&prepared, feeds, &mut outputs)?;
        Ok(outputs)
    }

    /// Checks fetches, for repeated runs.
    pub fn prepare(&self, fetches: &[&dyn IntoFetch]) -> Result<Prepared> {
        self.graph.take_late_error()?;
        let fetches: Vec<Fetch> = fetches.iter().map(|f| f.fetch()).collect();
        for f in &fetches {
            if f.graph != self.graph.uid() {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!("{} belongs to a different graph than this session", f.name),
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

    /// Like [`Session::run`], but overwrites `outputs` in place if dtypes and sizes match, so that
    /// a loop of runs does not allocate.
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
        let mut state = self.lock_after_queued()?;
        let at = state.program(self, fetches, feeds)?;
        if !state.programs[at].executable.checks_feeds() {
            check_finite_feeds(&self.graph, feeds)?;
        }
        if kind == RunKind::Plain
            && state.programs[at].executable.communicates()
            && let Some(group) = &self.options.process_group
        {
            // MPI matches collectives by their order alone: without this, a process that runs
            // something by itself would exchange tensors with a step of the others.
            let name = |fetch: &Fetch| &*self.graph.nodes()[fetch.node.0 as usize].name;
            let names: Vec<&str> = fetches.iter().map(name).collect();
            // The names differ between ranks: each has towers of its own.
            group.barrier_between_steps("runs", &names.join(", "), None, self.deadline())?;
        }
        let draw = match kind {
            RunKind::Step => state.run_index,
            // Plain runs use the upper half of the draw numbers.
            RunKind::Plain => 1 << 63 | state.run_index << 20 | state.plain_runs,
        };
        let run = RunInfo { seed: self.options.seed, draw };
        let mut values: [Feed<'_>; MAX_FEEDS] = [EMPTY.get_or_init(|| HostTensor::scalar(0u8)); MAX_FEEDS];
        if feeds.len() > MAX_FEEDS {
            return Err(Error::argument(format!(
                "at most {MAX_FEEDS} inputs can be fed, but {} were given",
                feeds.len()
            )));
        }
        values.iter_mut().zip(feeds).for_each(|(v, (_, t))| *v = t);
        state.record_undo(at)?;
        let executable = &mut state.programs[at].executable;
        let ran = catch_unwind(AssertUnwindSafe(|| executable.run(&run, &values[..feeds.len()], outputs)));
        let ran = ran.unwrap_or_else(|panic| Err(state.poison(&*panic)));
        let outcome = ran.map_err(|e| state.end_if_lost(e))?;
        state.staleness = match outcome {
            Outcome::Committed { staleness } => staleness,
            Outcome::Skipped => return Err(overflow_rules::skipped()),
            Outcome::NotFinite => return Err(self.explain_non_finite(&mut state, fetches, feeds, &run)),
        };
        match kind {
            RunKind::Step => (state.run_index, state.plain_runs) = (state.run_index + 1, 0),
            RunKind::Plain => state.plain_runs += 1,
        }
        Ok(())
    }

    /// Returns the value of a variable. One that is divided over processes is an error: none of them
    /// has all of it.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let index = self.variable(name)?;
        let state = self.lock_after_queued()?;
        match state.executor.shards(index)? {
            None => state.executor.read(index),
            Some(shards) => {
                let why = format!(
                    "the variable {name} is divided over {} processes, and none has all of it",
                    shards.count
                );
                Err(Error::new(ErrorKind::Unsupported, why)
                    .at(self.graph.variables()[index].site)
                    .note("read it from a checkpoint, or fetch it, which gathers it in all processes"))
            }
        }
    }

    /// Returns the value of a variable as this process stores it, and how it is divided over
    /// processes, if it is.
    pub(crate) fn read_stored(&self, name: &str) -> Result<(HostTensor, Option<Shards>)> {
        let index = self.variable(name)?;
        let state = self.lock_after_queued()?;
        Ok((state.executor.read(index)?, state.executor.shards(index)?))
    }

    /// Returns where the values that a checkpoint [captures](Session::capture) can wait until they are
    /// written.
    pub(crate) fn capture_place(&self) -> Result<CapturePlace> {
        let state = self.lock_after_queued()?;
        Ok(if state.executor.keeps_saved_on_device() { CapturePlace::Device } else { CapturePlace::Host })
    }

    /// Captures the value of a variable for a checkpoint. One that is to wait in host memory is copied,
    /// into `spare` if that has its dtype and sizes.
    pub(crate) fn capture(
        &self,
        name: &str,
        place: CapturePlace,
        spare: Option<HostTensor>,
    ) -> Result<CapturedValue> {
        let index = self.variable(name)?;
        let state = self.lock_after_queued()?;
        if place == CapturePlace::Device {
            return Ok(CapturedValue::OnDevice(state.executor.save(index)?));
        }
        let Some(mut value) = spare else { return Ok(CapturedValue::OnHost(state.executor.read(index)?)) };
        state.executor.read_into(index, &mut value)?;
        Ok(CapturedValue::OnHost(value))
    }

    /// Writes a variable. The value must have its dtype and sizes.
    pub fn write(&self, name: &str, value: &HostTensor) -> Result<()> {
        let index = self.variable(name)?;
        let v = &self.graph.variables()[index];
        if (v.dtype, v.sizes.as_slice()) != (value.dtype(), value.sizes()) {
            return Err(Error::shape(format!(
                "the variable {name} is {}{:?}, but the value is {}{:?}",
                v.dtype,
                v.sizes,
                value.dtype(),
                value.sizes()
            ))
            .at(v.site));
        }
        let mut state = self.lock_after_queued()?;
        state.record_undo_of(index)?;
        let State { overwritten, executor, .. } = &mut *state;
        overwritten.keep(index, &**executor)?;
        executor.write(index, value)
    }

    /// Starts to save the value that each variable has before a write or a run first changes it.
    /// Values stay on the device.
    pub(crate) fn begin_undo_log(&self) -> Result<()> {
        self.lock_after_queued()?.undo_log = Some(BTreeMap::new());
        Ok(())
    }

    /// Ends the undo log without reading what was saved.
    pub(crate) fn discard_undo_log(&self) -> Result<()> {
        self.lock()?.undo_log = None;
        Ok(())
    }

    /// Ends the undo log. Returns the names of the variables that were changed, with the values
    /// they had before.
    pub(crate) fn end_undo_log(&self) -> Result<Vec<(String, HostTensor)>> {
        let log = self.lock()?.undo_log.take().unwrap_or_default();
        let name = |index: usize| self.graph.variables()[index].name.clone();
        log.into_iter().map(|(index, saved)| Ok((name(index), saved.read()?))).collect()
    }

    /// Returns the plan of a run as text: fusion, in-place kernels, memory.
    pub fn plan_text(&self, fetches: &[&dyn IntoFetch], feeds: &[(&str, &HostTensor)]) -> Result<String> {
        let prepared = self.prepare(fetches)?;
        let mut state = self.lock()?;
        let at = state.program(self, &prepared.fetches, feeds)?;
        Ok(state.programs[at].executable.plan_text())
    }

    /// Returns the name and version of the library behind the device, such as a PJRT plugin; `None`
    /// for engines without one.
    pub fn platform(&self) -> Result<Option<String>> {
        Ok(self.lock()?.executor.platform())
    }

    /// Returns the memory of the device of each tower, as its allocator counts it; nothing for engines
    /// that use the host's memory, such as the CPU engine.
    pub fn device_memory(&self) -> Result<Vec<DeviceMemory>> {
        self.lock()?.executor.device_memory()
    }

    /// Starts to record what devices execute; see [`Executor::start_profiler`].
    pub(crate) fn start_device_profiler(&self) -> Result<Option<Box<dyn DeviceProfiler>>> {
        self.lock_after_queued()?.executor.start_profiler()
    }

    /// Ends a recording of what devices execute, after the steps that were queued.
    pub(crate) fn finish_device_profiler(
        &self,
        profiler: Box<dyn DeviceProfiler>,
    ) -> Result<Vec<DeviceEvents>> {
        drop(self.lock_after_queued()?);
        profiler.finish()
    }

    /// Returns the memory planned for the values of a run on all towers, without the variables, or
    /// `None` if the engine does not plan it, as XLA. Compiles the run if it is new.
    pub(crate) fn compiled_bytes(
        &self,
        fetches: &[&dyn IntoFetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<Option<usize>> {
        let prepared = self.prepare(fetches)?;
        let mut state = self.lock()?;
        let at = state.program(self, &prepared.fetches, feeds)?;
        Ok(state.programs[at].executable.planned_bytes())
    }

    /// Returns the bytes that a run takes with the variables, on each device, as it is planned for
    /// feeds of these dtypes and sizes. Neither runs nor allocates anything. On XLA devices the
    /// program is compiled, and feeds are counted, too.
    ///
    /// Returns an error on devices that do not plan memory.
    pub fn planned_bytes(
        &self,
        fetches: &[&dyn IntoFetch],
        feeds: &[(&str, DType, &[usize])],
    ) -> Result<usize> {
        self.plan(fetches, feeds, |executor, source| executor.planned_bytes(source))
    }

    /// Returns whether a run on feeds of these dtypes and sizes fits into `limit` bytes with the
    /// variables. If the session has a [memory limit](SessionOptions::memory_limit), parts of the
    /// forward pass may be computed again for that. Neither runs nor allocates anything.
    pub fn fits(
        &self,
        fetches: &[&dyn IntoFetch],
        feeds: &[(&str, DType, &[usize])],
        limit: usize,
    ) -> Result<bool> {
        let recomputes = self.options.memory_limit.is_some();
        self.plan(fetches, feeds, |executor, source| match recomputes {
            true => Ok(fit_memory::planned_within(executor, source, limit)?.is_some()),
            false => fit_memory::planned(executor, source).map(|bytes| bytes <= limit),
        })
    }

    fn plan<T>(
        &self,
        fetches: &[&dyn IntoFetch],
        feeds: &[(&str, DType, &[usize])],
        plan: impl FnOnce(&mut dyn Executor, &Source<'_>) -> Result<T>,
    ) -> Result<T> {
        let fetches = self.prepare(fetches)?.fetches;
        let feeds = feeds.iter().map(|(name, dtype, sizes)| (name.to_string(), *dtype, sizes.to_vec()));
        let request = Request { fetches, feeds: feeds.collect() };
        let source = Source::new(&self.graph, &request, self.reading);
        plan(&mut *self.lock()?.executor, &source)
    }

    /// Returns the time spent in each kernel, or on XLA in each part of the host's work for a launch,
    /// if [`SessionOptions::profile`] is set. The programs that were used last come last.
    pub fn profile(&self) -> Result<Vec<KernelTime>> {
        let state = self.lock()?;
        let of_runs = state.programs.iter().flat_map(|p| p.executable.profile());
        Ok(of_runs.chain(state.several.profile()).collect())
    }

    /// Returns the staging area for feeds, or `None` on engines that need none, such as the CPU
    /// engine.
    #[doc(alias = "StagingInput")]
    pub fn staging(&self) -> Result<Option<Staging>> {
        Ok(self.lock()?.executor.staging())
    }

    /// Returns the number of step runs so far.
    pub fn run_index(&self) -> Result<u64> {
        Ok(self.lock()?.run_index)
    }

    /// Sets the number of step runs, for a resumed run.
    pub fn set_run_index(&self, run_index: u64) -> Result<()> {
        let mut state = self.lock_after_queued()?;
        (state.run_index, state.plain_runs) = (run_index, 0);
        Ok(())
    }

    /// Returns the number of plain runs since the last step run. Like the number of step runs, it
    /// is part of the key of their random numbers.
    pub(crate) fn plain_runs(&self) -> Result<u64> {
        Ok(self.lock()?.plain_runs)
    }

    /// Sets the number of plain runs since the last step run, for a resumed run.
    pub(crate) fn set_plain_runs(&self, plain_runs: u64) -> Result<()> {
        self.lock()?.plain_runs = plain_runs;
        Ok(())
    }

    /// Compiles the program of a run in advance.
    pub(super) fn compile(&self, fetches: &[Fetch], feeds: &[(&str, &HostTensor)]) -> Result<()> {
        self.lock()?.program(self, fetches, feeds).map(|_| ())
    }

    fn variable(&self, name: &str) -> Result<usize> {
        self.graph.variables().iter().position(|v| v.name == name).ok_or_else(|| {
            let known = self.graph.variables().iter().map(|v| v.name.as_str());
            Error::new(ErrorKind::Name, format!("there is no variable named {name:?}")).note(nearest_names(
                "variables",
                name,
                known,
            ))
        })
    }

    /// Locks the state after the steps that were queued for a launch of several have been launched, so
    /// that variables have the values of the last step.
    fn lock_after_queued(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock()?;
        state.launch_queued(self.options.seed)?;
        Ok(state)
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
            overwritten: OverwrittenValues::default(),
            staleness: 0,
            poisoned: None,
            several: SeveralSteps::default(),
        }
    }

    /// Saves the variables that a program is about to update, if an undo log is kept.
    fn record_undo(&mut self, program: usize) -> Result<()> {
        if self.undo_log.is_none() {
            return Ok(());
        }
        let updates = self.programs[program].updates.clone();
        updates.into_iter().try_for_each(|index| self.record_undo_of(index))
    }

    /// Saves a variable that is about to change, if an undo log is kept and does not have it yet.
    fn record_undo_of(&mut self, index: usize) -> Result<()> {
        if let Some(log) = &mut self.undo_log
            && !log.contains_key(&index)
        {
            log.insert(index, self.executor.save(index)?);
        }
        Ok(())
    }

    /// Ends the session, because a panic may have left invalid state. The error names the kernel if
    /// the engine knows it.
    pub(super) fn poison(&mut self, panic: &(dyn std::any::Any + Send)) -> Error {
        let unknown = || Error::new(ErrorKind::Engine, format!("the engine panicked: {}", panic_text(panic)));
        let e = panic.downcast_ref::<Error>().cloned().unwrap_or_else(unknown);
        self.poisoned
            .get_or_insert(e.note("this session cannot continue; the last checkpoint is valid"))
            .clone()
    }

    /// Counts a launch that is not waited for. Returns its number.
    pub(super) fn count_launch(&mut self) -> u64 {
        self.overwritten.launch()
    }

    /// Notes the outcome of a launch that was in flight. If it failed, variables that were written since
    /// get back their values.
    pub(super) fn launch_ended(&mut self, launch: u64, succeeded: bool) -> Result<()> {
        match succeeded {
            true => self.overwritten.succeeded(launch),
            false if self.poisoned.is_none() && !self.executor.lost() => {
                self.overwritten.restore(&mut *self.executor)?;
            }
            false => {}
        }
        Ok(())
    }

    /// Ends the session with this error if the executor is lost.
    pub(super) fn end_if_lost(&mut self, e: Error) -> Error {
        if self.executor.lost() {
            self.poisoned.get_or_insert(e.clone());
        }
        e
    }

    /// Returns the index of the program for these fetches and shapes. Compiles it if it is not
    /// cached.
    pub(super) fn program(
        &mut self,
        session: &Session,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<usize> {
        let cached = self.programs.iter().position(|p| request_matches(&p.request, fetches, feeds));
        let program = match cached {
            // The common case: the same as last time.
            Some(at) if at + 1 == self.programs.len() => return Ok(at),
            Some(at) => self.programs.remove(at),
            None => {
                let request = Arc::new(request(fetches, feeds));
                let source = Source::new(&session.graph, &request, session.reading);
                let updates = source.updates()?;
                let executable = fit_memory::compile_within(
                    &mut *self.executor,
                    &source,
                    session.options.memory_limit,
                    |executor, source| executor.compile(source),
                )?;
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

/// Returns whether a request has these fetches and feeds, without allocating.
pub(super) fn request_matches(request: &Request, fetches: &[Fetch], feeds: &[(&str, &HostTensor)]) -> bool {
    request.fetches == fetches
        && request.feeds.len() == feeds.len()
        && request
            .feeds
            .iter()
            .zip(feeds)
            .all(|((name, dtype, sizes), (n, t))| name == n && *dtype == t.dtype() && sizes == t.sizes())
}

pub(super) fn is_finite(t: &HostTensor) -> bool {
    // SAFETY: `as_bytes` returns the tensor's elements, `t.len()` of type `t.dtype()`, and
    // `Isa::detect` an instruction set of this CPU.
    unsafe { tensorpack_kernels::all_finite(Isa::detect(), t.dtype(), t.as_bytes().as_ptr(), t.len()) }
}

/// Returns whether a feed is finite, or at least no NaN if it may be infinite.
pub(super) fn is_valid_feed(t: &HostTensor, may_be_infinite: impl FnOnce() -> bool) -> bool {
    !t.dtype().is_float() || is_finite(t) || (may_be_infinite() && !has_nan(t))
}

pub(super) fn check_finite_feeds(graph: &Frozen, feeds: &[(&str, &HostTensor)]) -> Result<()> {
    for (name, t) in feeds {
        if is_valid_feed(t, || graph.takes_infinities(name)) {
            continue;
        }
        let infinite = graph.takes_infinities(name);
        let bad = |x: &f64| if infinite { x.is_nan() } else { !x.is_finite() };
        let at = t.to_f64_vec().iter().position(bad).unwrap_or(0);
        let what =
            format!("the feed of {name} contains a NaN or an infinity, at element {at} of {:?}", t.sizes());
        let e = Error::new(ErrorKind::NotFinite, what);
        return Err(match infinite {
            true => e,
            false => e.note("declare an input that is a mask with `TensorSpec::allow_infinite`"),
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
