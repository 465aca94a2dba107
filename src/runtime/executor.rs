//! The traits of an engine's executor: it keeps variables, compiles parts of a frozen graph, and
//! runs them.

use super::{DeviceProfiler, KernelProgress, Source, Staging};
use crate::graph::VariableInfo;
use crate::kir::Shards;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Keeps the variables of a session on a device, and compiles programs for it.
pub trait Executor: Send {
    /// Allocates and initializes the variables.
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()>;
    /// Returns the value of variable `index`; only its shard if it is divided over processes.
    fn read(&self, index: usize) -> Result<HostTensor>;
    /// Overwrites `into` with the value of variable `index`, in place if dtype and sizes match. By
    /// default the value is read.
    fn read_into(&self, index: usize, into: &mut HostTensor) -> Result<()> {
        *into = self.read(index)?;
        Ok(())
    }
    /// Returns how variable `index` is divided over processes, if it is.
    fn shards(&self, index: usize) -> Result<Option<Shards>> {
        let _ = index;
        Ok(None)
    }
    /// Writes variable `index`. The value must have its dtype and sizes.
    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()>;
    /// Saves the current value of variable `index`; later writes and runs do not change it. An
    /// engine whose devices have their own memory keeps it there. By default the value is read.
    fn save(&self, index: usize) -> Result<Box<dyn SavedValue>> {
        Ok(Box::new(self.read(index)?))
    }
    /// Whether all variables may be [saved](Executor::save) in the memory of their device while the next
    /// run is launched: there is room for the saved values beside its new ones. Otherwise, and by
    /// default, they are read first.
    fn keeps_saved_on_device(&self) -> bool {
        false
    }

    /// Compiles a requested part of a graph.
    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>>;
    /// Plans a requested part of a graph and returns the bytes that it takes with the variables, on
    /// each device. Nothing is allocated for it.
    fn planned_bytes(&mut self, source: &Source<'_>) -> Result<usize> {
        let _ = source;
        Err(Error::new(ErrorKind::Unsupported, "this device does not plan memory")
            .note("use a device cpu:N or xla:PLATFORM:N"))
    }
    /// Runs the program kernel by kernel, without changing variables, until a result is not finite.
    /// Returns the error that names it, or `None` if all are finite.
    #[doc(alias = "find_bad")]
    fn find_non_finite(
        &mut self,
        source: &Source<'_>,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<Error>>;
    /// Whether a tower that hangs still uses the executor's memory, so that nothing can be run or
    /// read any more.
    fn lost(&self) -> bool {
        false
    }
    /// Returns the name and version of the library behind the device, if there is one.
    fn platform(&self) -> Option<String> {
        None
    }
    /// Returns the memory of the device of each tower; nothing on engines that use the host's.
    fn device_memory(&self) -> Result<Vec<DeviceMemory>> {
        Ok(Vec::new())
    }
    /// Waits for what was launched, then starts to record what the devices execute. Returns `None` on
    /// engines whose work is all done by threads of this process, which record themselves
    /// (`tensorpack-timeline`), and an error if the kernels cannot be recorded.
    fn start_profiler(&self) -> Result<Option<Box<dyn DeviceProfiler>>> {
        Ok(None)
    }

    /// Whether its programs can be [started](Executable::start) without waiting for them.
    fn runs_ahead(&self) -> bool {
        false
    }
    /// Whether it can [compile several steps into one program](Executor::compile_steps).
    fn runs_several_steps(&self) -> bool {
        false
    }
    /// Compiles a requested part of a graph into a program that runs it up to `most` times in one
    /// launch, each time with other feeds. The program advances the variable
    /// [`GLOBAL_STEP`](crate::graph::GLOBAL_STEP), if there is one, by one per step. Returns `None` if
    /// such a run must be launched by itself: towers whose batches have different sizes run a program
    /// each.
    fn compile_steps(
        &mut self,
        source: &Source<'_>,
        most: usize,
    ) -> Result<Option<Box<dyn StepsExecutable>>> {
        let _ = (source, most);
        Err(Error::new(ErrorKind::Unsupported, "this device runs one step per launch"))
    }
    /// Returns the staging area for feeds, if devices have their own memory.
    fn staging(&self) -> Option<Staging> {
        None
    }
    /// Creates an executor that shares the variables. Its runs compute on a snapshot of them,
    /// concurrently with others.
    fn fork(&self, fork: Fork) -> Result<Box<dyn Executor>> {
        let _ = fork;
        Err(Error::new(ErrorKind::Unsupported, "this device does not support asynchronous towers")
            .note("train asynchronously on thread teams (cpu:N), or use a synchronous trainer here"))
    }
}

/// The memory of a device with memory of its own, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "max_memory_allocated")]
pub struct DeviceMemory {
    /// Bytes that this process uses now.
    pub in_use: u64,
    /// The most bytes that it has used at once since it opened the device. The search for the fastest
    /// kernels while a program is compiled counts, too.
    pub peak: u64,
    /// Bytes that it may use.
    pub limit: u64,
}

/// The value that a variable had when it was [saved](Executor::save).
pub trait SavedValue: Send {
    /// Returns the value, copied to the host if it is on a device.
    fn read(&self) -> Result<HostTensor>;
}

impl SavedValue for HostTensor {
    fn read(&self) -> Result<HostTensor> {
        Ok(self.clone())
    }
}

/// One of several executors that share variables.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The tower that it runs.
    pub tower: usize,
    /// The number of towers.
    pub towers: usize,
    /// Where to record the current kernel.
    pub at: KernelProgress,
}

/// A value fed to an input.
pub type Feed<'a> = &'a HostTensor;

/// The key of a run's random numbers.
#[derive(Clone, Copy, Debug)]
pub struct RunInfo {
    /// The seed of the session.
    pub seed: u64,
    /// The draw number of this run in every random stream.
    pub draw: u64,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All checked values were finite, and the variables were updated.
    Committed {
        /// The staleness: the number of updates by others since this run read the variables.
        staleness: u64,
    },
    /// A value was not finite; no variable was changed.
    NotFinite,
    /// A value was not finite. Only variables with a rule for that were changed
    /// ([`VariableInfo::on_overflow`]), and later runs can succeed.
    Skipped,
}

/// Checks that feeds have the number, dtypes and sizes that a program was compiled for.
pub(super) fn check_feeds(compiled: &[(DType, Vec<usize>)], feeds: &[Feed<'_>]) -> Result<()> {
    if compiled.len() != feeds.len() {
        let why = format!("the program expects {} feeds, but {} were given", compiled.len(), feeds.len());
        return Err(Error::argument(why));
    }
    for (i, ((dtype, sizes), feed)) in compiled.iter().zip(feeds).enumerate() {
        if feed.dtype() != *dtype {
            return Err(Error::dtype(format!(
                "feed {i} is {}, but the program expects {dtype}",
                feed.dtype()
            )));
        }
        if feed.sizes() != sizes {
            return Err(Error::shape(format!(
                "feed {i} is {:?}, but the program expects {sizes:?}",
                feed.sizes()
            )));
        }
    }
    Ok(())
}

/// Checks that a value has the dtype and sizes of variable `index`; `spec` is `None` if there is no
/// such variable.
pub(super) fn check_value(spec: Option<(DType, &[usize])>, index: usize, value: &HostTensor) -> Result<()> {
    let Some((dtype, sizes)) = spec else {
        return Err(Error::argument(format!("there is no variable with index {index}")));
    };
    if value.dtype() != dtype {
        return Err(Error::dtype(format!("variable {index} is {dtype}, but the value is {}", value.dtype())));
    }
    if value.sizes() != sizes {
        return Err(Error::shape(format!(
            "variable {index} is {sizes:?}, but the value is {:?}",
            value.sizes()
        )));
    }
    Ok(())
}

/// A compiled program.
pub trait Executable: Send {
    /// Runs once. Feeds must have the dtypes and sizes that the program was compiled for. `outputs`
    /// are overwritten in place if dtype and sizes match, so that a caller that reuses them causes
    /// no allocation.
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome>;
    /// Whether a run checks its feeds, and ends with [`Outcome::NotFinite`] if one is not finite.
    fn checks_feeds(&self) -> bool {
        false
    }
    /// Whether a run exchanges tensors with other processes over MPI, so that all of them must run
    /// this program, and nothing else meanwhile.
    fn communicates(&self) -> bool {
        false
    }
    /// Starts a run without waiting for it. If it fails, neither it nor any run that was started
    /// before its failure was known changes a variable.
    fn start(&mut self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Box<dyn Pending>> {
        let _ = (run, feeds);
        Err(Error::new(ErrorKind::Unsupported, "this device runs programs only synchronously"))
    }
    /// Returns the plan as text: fusion, in-place kernels, memory.
    fn plan_text(&self) -> String;
    /// Returns the memory planned for the values of a run, without the variables; `None` if the
    /// engine does not know it.
    fn planned_bytes(&self) -> Option<usize> {
        None
    }
    /// Returns the time spent in each kernel since compilation, if profiling is on.
    fn profile(&self) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// A run that was started and not waited for.
pub trait Pending: Send {
    /// Waits for the run and stores its fetches in `outputs`.
    fn collect(self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome>;
}

/// What a launch of several steps needs to know beside their feeds.
#[derive(Clone, Copy, Debug)]
pub struct StepsInfo {
    /// The key of the random numbers of the first step; the draw number of each following step is
    /// one higher.
    pub first: RunInfo,
    /// The number of steps in a row that may fail their check and be skipped. After one more, and
    /// after any other failure, no step changes a variable.
    pub skip_limit: u32,
    /// The number of steps in a row that were skipped before this launch.
    pub skipped_before: u32,
}

/// What a step of a launch came to.
#[derive(Clone, Debug)]
pub enum StepEnd {
    /// It updated the variables; these are its fetches.
    Committed(Vec<HostTensor>),
    /// See [`Outcome::NotFinite`].
    NotFinite,
    /// See [`Outcome::Skipped`].
    Skipped,
}

/// The result of a step of a launch.
pub type StepResult = Result<StepEnd>;

/// A compiled program that runs several steps in one launch.
pub trait StepsExecutable: Send {
    /// Starts a launch of as many steps as feeds are given, without waiting for it.
    fn start(&mut self, info: &StepsInfo, feeds: &[&[Feed<'_>]]) -> Result<Box<dyn PendingSteps>>;
    /// Returns the time spent since compilation, if profiling is on.
    fn profile(&self) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// A launch of several steps that was started and not waited for.
pub trait PendingSteps: Send {
    /// Waits for the launch. Returns the results of its steps, up to the one that ended it.
    fn collect(self: Box<Self>) -> Result<Vec<StepResult>>;
}

/// The time spent in a kernel.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The kind of kernel and what it was lowered from.
    pub name: String,
    /// The number of runs.
    pub runs: u64,
    /// Total seconds.
    pub seconds: f64,
    /// Seconds of the fastest run, which other load disturbs least.
    pub best_seconds: f64,
    /// Floating point operations of one run.
    pub flops: f64,
    /// Bytes read and written by one run.
    pub bytes: f64,
}
