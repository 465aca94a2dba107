//! What an engine is: it keeps variables, compiles parts of a frozen graph, and runs them.

use super::{Interrupt, KernelProgress, Source, Staging};
use crate::graph::VariableInfo;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// An engine with its variables.
pub trait Executor: Send {
    /// Makes room for the variables and gives them their first values.
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()>;
    /// The value of variable `index`.
    fn read(&self, index: usize) -> Result<HostTensor>;
    /// Gives variable `index` a value of its own type and sizes.
    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()>;
    /// Saves the current value of variable `index`; later writes and runs do not change it. An
    /// engine whose devices have their own memory keeps it there. By default the value is read.
    fn save(&self, index: usize) -> Result<Box<dyn SavedValue>> {
        Ok(Box::new(self.read(index)?))
    }
    /// Makes what a source asks for runnable.
    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>>;
    /// Runs the program kernel by kernel, without changing a variable, until a result is not finite; returns the
    /// error that names it, or `None` if all are finite.
    fn find_bad(&mut self, source: &Source<'_>, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Option<Error>>;
    /// Whether a tower that did not come back has the engine's memory: then nothing can be run or read any more.
    fn lost(&self) -> bool {
        false
    }
    /// What to look at in waits that may be cut short, such as for a compiler.
    fn watch(&mut self, interrupt: &Interrupt) {
        let _ = interrupt;
    }
    /// Whether its programs can be [started](Executable::start), to go on by themselves.
    fn runs_ahead(&self) -> bool {
        false
    }
    /// How to send ahead what runs will be fed with, where devices have memory of their own.
    fn staging(&self) -> Option<Staging> {
        None
    }
    /// Another engine over the same variables, whose runs compute on a snapshot of them while others do the same.
    fn fork(&self, fork: Fork) -> Result<Box<dyn Executor>> {
        let _ = fork;
        Err(Error::new(ErrorKind::Unsupported, "this device has no towers that run each on its own")
            .note("train asynchronously on thread teams (cpu:N), or here with a synchronous trainer"))
    }
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

/// Which of several engines over the same variables one is.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The tower it is for.
    pub tower: usize,
    /// How many towers there are.
    pub towers: usize,
    /// Where to say what it is at.
    pub at: KernelProgress,
}

/// A value fed to an input.
pub type Feed<'a> = &'a HostTensor;

/// What a run is keyed by.
#[derive(Clone, Copy, Debug)]
pub struct RunInfo {
    /// The seed of the session.
    pub seed: u64,
    /// Which draw of every random stream this run takes.
    pub draw: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was finite, and the variables have their next values.
    Committed {
        /// How many updates by others there were since this run read the variables.
        behind: u64,
    },
    /// Something was not finite; no variable was changed.
    NotFinite,
}

/// Checks that what is fed has the number, types and sizes that a program was compiled for.
pub(super) fn check_feeds(compiled: &[(DType, Vec<usize>)], feeds: &[Feed<'_>]) -> Result<()> {
    if compiled.len() != feeds.len() {
        let why = format!("the program takes {} feeds, not {}", compiled.len(), feeds.len());
        return Err(Error::argument(why));
    }
    for (i, ((dtype, sizes), feed)) in compiled.iter().zip(feeds).enumerate() {
        if feed.dtype() != *dtype {
            return Err(Error::dtype(format!("feed {i} is {}, but the program takes {dtype}", feed.dtype())));
        }
        if feed.sizes() != sizes {
            return Err(Error::shape(format!(
                "feed {i} is {:?}, but the program takes {sizes:?}",
                feed.sizes()
            )));
        }
    }
    Ok(())
}

/// Checks that a value has the form of the variable that it is for, which is `None` if there is no such variable.
pub(super) fn check_value(known: Option<(DType, &[usize])>, index: usize, value: &HostTensor) -> Result<()> {
    let Some((dtype, sizes)) = known else {
        return Err(Error::argument(format!("there is no variable number {index}")));
    };
    if value.dtype() != dtype {
        return Err(Error::dtype(format!("variable {index} is {dtype}, not {}", value.dtype())));
    }
    if value.sizes() != sizes {
        return Err(Error::shape(format!("variable {index} is {sizes:?}, not {:?}", value.sizes())));
    }
    Ok(())
}

/// A program that can be run.
pub trait Executable: Send {
    /// Runs once. What is fed must have the types and sizes that the program was compiled for, or it is an error.
    /// `outputs` are overwritten in place where type and sizes fit, so that a caller who keeps them
    /// causes no allocation.
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome>;
    /// Whether a run looks by itself at what it is fed, and ends as [`Outcome::NotFinite`] where that is not finite.
    fn checks_feeds(&self) -> bool {
        false
    }
    /// Starts a run that goes on by itself. If it turns out to have failed, neither it nor any run that was started before
    /// that was known has changed a variable.
    fn start(&mut self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Box<dyn Pending>> {
        let _ = (run, feeds);
        Err(Error::new(ErrorKind::Unsupported, "this device runs only what is waited for"))
    }
    /// The plan as text: what fused, what is in place, how much memory.
    fn plan_text(&self) -> String;
    /// Seconds spent in each kernel since the program was made, if it was asked to count.
    fn profile(&self) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// A run that was started and goes on by itself.
pub trait Pending: Send {
    /// Waits for its end, and takes what it fetched.
    fn collect(self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome>;
}

/// Where time went.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The kind of kernel and what it was lowered from.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of the shortest run: what it takes when nothing else disturbs the machine.
    pub best_seconds: f64,
    /// Floating point operations of one run.
    pub flops: f64,
    /// Bytes read and written by one run.
    pub bytes: f64,
}
