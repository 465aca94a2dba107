//! Compiled programs.

use crate::c_api::{
    Args, CompiledMemory, Execute, ExecuteOptions, OutputDims, RawExecutable, RawLoaded, zero,
};
use crate::client::Handle;
use crate::{Buffer, Event, dtype};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// A compiled program, on the devices it runs on.
pub struct Executable {
    handle: Arc<Handle>,
    raw: *mut RawLoaded,
    devices: usize,
    outputs: Vec<(DType, Vec<usize>)>,
    memory: Result<PlannedMemory>,
}

// SAFETY: the C API says that an executable may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// The memory that a program takes on each of its devices, as planned when it was compiled. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedMemory {
    /// Its arguments.
    pub arguments: u64,
    /// Its results.
    pub outputs: u64,
    /// What of the results lies in place of arguments.
    pub aliased: u64,
    /// What it needs while it runs.
    pub temporary: u64,
    /// Its code.
    pub code: u64,
}

impl PlannedMemory {
    /// All that must be there at once.
    pub fn total(&self) -> u64 {
        (self.arguments + self.outputs + self.temporary + self.code).saturating_sub(self.aliased)
    }
}

impl fmt::Display for PlannedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let [all, arguments, outputs, aliased, temporary] =
            [self.total(), self.arguments, self.outputs, self.aliased, self.temporary].map(megabytes);
        write!(
            f,
            "{all:.1} MB: {arguments:.1} of arguments, {outputs:.1} of results ({aliased:.1} in place), "
        )?;
        write!(f, "{temporary:.1} in between")
    }
}

/// A run that was started.
#[derive(Debug)]
pub struct Execution {
    /// What it makes, by device. The buffers may be used at once.
    pub outputs: Vec<Vec<Buffer>>,
    /// The ends, by device.
    pub done: Vec<Event>,
}

impl Executable {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut RawLoaded) -> Result<Executable> {
        let (plugin, table) = (&handle.plugin, handle.plugin.table());
        let mut made = Executable {
            handle: handle.clone(),
            raw,
            devices: 0,
            outputs: Vec::new(),
            memory: Ok(PlannedMemory { arguments: 0, outputs: 0, aliased: 0, temporary: 0, code: 0 }),
        };
        // SAFETY: the executable is the plugin's; the list is read at once.
        made.devices = unsafe {
            plugin.ask("loaded_addressable_devices", table.loaded_addressable_devices, raw)?.to_vec().len()
        };
        // SAFETY: as above; what it returns is ours to free.
        let program = unsafe { plugin.ask("loaded_executable", table.loaded_executable, raw) }?;
        let outputs = outputs(handle, program);
        made.memory = planned_memory(handle, program);
        // SAFETY: nobody uses it afterwards.
        unsafe { plugin.destroy(table.executable_destroy, program) };
        made.outputs = outputs?;
        Ok(made)
    }

    /// The number of devices it runs on at once.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// The results on each device: their types and sizes.
    pub fn outputs(&self) -> &[(DType, Vec<usize>)] {
        &self.outputs
    }

    /// The memory it takes on each device; an `Err` where the plugin does not say.
    pub fn memory(&self) -> Result<PlannedMemory> {
        self.memory.clone()
    }

    /// Starts the program on all of its devices: `arguments` has a list for each. An argument whose memory the program
    /// was compiled to reuse (`tf.aliasing_output`) is donated, and cannot be used afterwards.
    ///
    /// The order of arguments, their types and shapes must be the program's: XLA checks sizes, not more.
    pub fn execute(&self, arguments: &[Vec<&Buffer>]) -> Result<Execution> {
        self.handle.check()?;
        self.check(arguments)?;
        let plugin = &self.handle.plugin;
        let lists: Vec<Vec<_>> =
            arguments.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        let pointers: Vec<_> = lists.iter().map(Vec::as_ptr).collect();
        let mut made = vec![vec![ptr::null_mut(); self.outputs.len()]; self.devices];
        let made_lists: Vec<_> = made.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut done = vec![ptr::null_mut(); self.devices];
        let mut options = Args::new(zero::<ExecuteOptions>());
        let execute = Execute {
            executable: self.raw,
            options: &mut options,
            arguments: pointers.as_ptr(),
            devices: self.devices,
            argument_count: arguments.first().map_or(0, Vec::len),
            outputs: made_lists.as_ptr(),
            done: done.as_mut_ptr(),
            ..zero()
        };
        // SAFETY: executable and arguments are the plugin's; all lists have the lengths that are said and live until the
        // call returns; those that it fills have room for what the program makes.
        unsafe { plugin.call("loaded_execute", plugin.table().loaded_execute, execute) }
            .map_err(|e| self.explain(e))?;
        let buffer = |(raw, (dtype, sizes)): (_, &(DType, Vec<usize>))| {
            Buffer::new(&self.handle, raw, *dtype, sizes.clone())
        };
        let outputs = made.into_iter().map(|list| list.into_iter().zip(&self.outputs).map(buffer).collect());
        let done = done.into_iter().map(|raw| Event::new(&self.handle, raw));
        Ok(Execution { outputs: outputs.collect(), done: done.collect() })
    }

    /// Adds to an error of a run what the program planned, if memory ran out. [`execute`](Executable::execute) does so; an
    /// error that only comes with a result may need it, too.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        match &self.memory {
            Ok(planned) if error.kind() == ErrorKind::Memory => {
                error.note(format!("on each device the program takes {planned}"))
            }
            _ => error,
        }
    }

    fn check(&self, arguments: &[Vec<&Buffer>]) -> Result<()> {
        if arguments.len() != self.devices {
            let (given, needed) = (arguments.len(), self.devices);
            let why =
                format!("the program runs on {needed} devices, but {given} lists of arguments are given");
            return Err(Error::argument(why));
        }
        if arguments.iter().any(|list| list.len() != arguments[0].len()) {
            return Err(Error::argument("the devices are given different numbers of arguments"));
        }
        if !arguments.iter().flatten().all(|buffer| buffer.belongs_to(&self.handle)) {
            return Err(Error::argument("an argument is a buffer of another client"));
        }
        Ok(())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if !self.handle.is_lost() {
            let plugin = &self.handle.plugin;
            // SAFETY: the executable is ours; runs that were started keep what they need.
            unsafe { plugin.destroy(plugin.table().loaded_destroy, self.raw) };
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program on {} devices making {:?}", self.devices, self.outputs)
    }
}

fn outputs(handle: &Arc<Handle>, program: *mut RawExecutable) -> Result<Vec<(DType, Vec<usize>)>> {
    let (plugin, table) = (&handle.plugin, handle.plugin.table());
    // SAFETY: the program is the plugin's; the lists live as long as it, have the lengths that are said, and are copied.
    unsafe {
        let count = plugin.ask("executable_output_count", table.executable_output_count, program)?;
        let dtypes =
            plugin.ask("executable_output_dtypes", table.executable_output_dtypes, program)?.to_vec();
        let ask = OutputDims { executable: program, ..zero() };
        let shapes = plugin.call("executable_output_dims", table.executable_output_dims, ask)?;
        let mut at = shapes.dims;
        let mut outputs = Vec::with_capacity(count);
        for (i, dtype) in dtypes.into_iter().enumerate().take(count) {
            let rank = *shapes.ranks.add(i);
            let sizes = (0..rank).map(|axis| *at.add(axis) as usize).collect();
            at = at.add(rank);
            outputs.push((dtype::of_number(dtype)?, sizes));
        }
        Ok(outputs)
    }
}

fn planned_memory(handle: &Arc<Handle>, program: *mut RawExecutable) -> Result<PlannedMemory> {
    let (plugin, table) = (&handle.plugin, handle.plugin.table());
    let ask = CompiledMemory { executable: program, ..zero() };
    // SAFETY: the program is the plugin's.
    let told = unsafe { plugin.call("executable_memory_stats", table.executable_memory_stats, ask) }?;
    let bytes = |n: i64| n.try_into().unwrap_or(0);
    Ok(PlannedMemory {
        arguments: bytes(told.arguments),
        outputs: bytes(told.outputs),
        aliased: bytes(told.aliased),
        temporary: bytes(told.temporary),
        code: bytes(told.code),
    })
}
