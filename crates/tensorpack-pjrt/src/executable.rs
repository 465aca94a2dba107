//! Executables: compiled programs.

use crate::c_api::{
    PJRT_Buffer, PJRT_Device, PJRT_Event, PJRT_Executable, PJRT_ExecuteOptions, PJRT_LoadedExecutable,
};
use crate::c_struct::{CStruct, to_vec};
use crate::client::Handle;
use crate::event::CHECK_INTERVAL;
use crate::plugin::call;
use crate::{Buffer, Event, dtype};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// A compiled program, loaded on its devices.
#[doc(alias = "PJRT_LoadedExecutable")]
pub struct Executable {
    handle: Arc<Handle>,
    raw: *mut PJRT_LoadedExecutable,
    /// The ids of its devices of this process.
    devices: Vec<i64>,
    outputs: Vec<(DType, Vec<usize>)>,
    /// The sizes of the outputs, for their buffers.
    output_sizes: Vec<Arc<[usize]>>,
    memory: Result<PlannedMemory>,
}

// SAFETY: the C API allows the use of an executable from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// The memory that a program needs on each of its devices, as planned by the compiler. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "CompiledMemoryStats")]
pub struct PlannedMemory {
    /// Size of the arguments.
    pub arguments: u64,
    /// Size of the outputs.
    pub outputs: u64,
    /// Size of the outputs that alias arguments.
    pub aliased: u64,
    /// Size of the temporaries.
    pub temporary: u64,
    /// Size of the generated code.
    pub code: u64,
}

impl PlannedMemory {
    /// The memory that is needed at once.
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
            "{all:.1} MB: {arguments:.1} of arguments, {outputs:.1} of outputs ({aliased:.1} aliased), "
        )?;
        write!(f, "{temporary:.1} of temporaries")
    }
}

/// A call that starts a program, with everything that the plugin reads and writes.
struct Call {
    executable: *mut PJRT_LoadedExecutable,
    /// The arguments on each device.
    arguments: Vec<Vec<*mut PJRT_Buffer>>,
    kept: Vec<i64>,
    /// Room for the outputs of each device.
    outputs: Vec<Vec<*mut PJRT_Buffer>>,
    /// Room for an event of each device, if the caller wants them.
    done: Option<Vec<*mut PJRT_Event>>,
}

// SAFETY: the C API allows the use of its objects from any thread, and the lists are the call's own.
unsafe impl Send for Call {}

impl Call {
    fn run(&mut self, handle: &Handle) -> Result<()> {
        let pointers: Vec<_> = self.arguments.iter().map(Vec::as_ptr).collect();
        let output_lists: Vec<_> = self.outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut options = PJRT_ExecuteOptions {
            non_donatable_input_indices: self.kept.as_ptr(),
            num_non_donatable_input_indices: self.kept.len(),
            ..CStruct::new()
        };
        if let Some(incarnations) = &handle.incarnations {
            // The C API takes mutable pointers, but only reads the lists.
            options.num_tasks = incarnations.ids.len();
            options.task_ids = incarnations.task_ids.as_ptr().cast_mut();
            options.incarnation_ids = incarnations.ids.as_ptr().cast_mut();
        }
        // SAFETY: executable and arguments are the plugin's, as `Executable::check` has checked, and
        // alive: the caller borrows them until the call returns, or until the client is abandoned,
        // after which they are not destroyed. All lists have the stated lengths and live until the
        // call returns; those that it fills have room for all outputs, whose number `outputs` has
        // checked, and for an event of each device, or none if the list of events is null.
        unsafe {
            call!(
                handle.plugin,
                PJRT_LoadedExecutable_Execute {
                    executable: self.executable,
                    options: &mut options,
                    argument_lists: pointers.as_ptr(),
                    num_devices: self.outputs.len(),
                    num_args: self.arguments.first().map_or(0, Vec::len),
                    output_lists: output_lists.as_ptr(),
                    device_complete_events: self.done.as_mut().map_or(ptr::null_mut(), |d| d.as_mut_ptr()),
                }
            )
        }?;
        Ok(())
    }
}

/// An execution that was started.
#[derive(Debug)]
pub struct Execution {
    /// The outputs of each device. The buffers may be used at once.
    pub outputs: Vec<Vec<Buffer>>,
    /// An event for each device, ready when the program is complete there.
    #[doc(alias = "device_complete_events")]
    pub done: Vec<Event>,
}

impl Executable {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut PJRT_LoadedExecutable) -> Result<Executable> {
        let plugin = &handle.plugin;
        // Built first, so that dropping it destroys the executable if anything below fails.
        let mut loaded = Executable {
            handle: handle.clone(),
            raw,
            devices: Vec::new(),
            outputs: Vec::new(),
            output_sizes: Vec::new(),
            memory: Ok(PlannedMemory { arguments: 0, outputs: 0, aliased: 0, temporary: 0, code: 0 }),
        };
        // SAFETY: the executable is the plugin's; the list lives as long as it, and is copied.
        let devices = unsafe {
            let args = call!(plugin, PJRT_LoadedExecutable_AddressableDevices { executable: raw })?;
            to_vec(args.addressable_devices, args.num_addressable_devices)
        };
        loaded.devices = devices.into_iter().map(|raw| device_id(handle, raw)).collect::<Result<_>>()?;
        // SAFETY: as above; the result is the caller's to destroy.
        let args = unsafe { call!(plugin, PJRT_LoadedExecutable_GetExecutable { loaded_executable: raw }) }?;
        let executable = args.executable;
        let outputs = outputs(handle, executable);
        loaded.memory = planned_memory(handle, executable);
        // SAFETY: nobody uses it afterwards.
        let _ = unsafe { call!(plugin, PJRT_Executable_Destroy { executable }) };
        loaded.outputs = outputs?;
        loaded.output_sizes = loaded.outputs.iter().map(|(_, sizes)| sizes[..].into()).collect();
        Ok(loaded)
    }

    /// The number of devices of this process that the program runs on at once.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The ids of the devices of this process that the program runs on, in the order of its
    /// arguments and outputs: the order of their replicas.
    pub fn device_ids(&self) -> &[i64] {
        &self.devices
    }

    /// The dtypes and sizes of the outputs on each device.
    pub fn outputs(&self) -> &[(DType, Vec<usize>)] {
        &self.outputs
    }

    /// The memory the program needs on each device; an error if the plugin does not report it.
    #[doc(alias = "PJRT_Executable_GetCompiledMemoryStats")]
    pub fn memory(&self) -> Result<PlannedMemory> {
        self.memory.clone()
    }

    /// Serializes the compiled program, with its compile options and device assignment, for
    /// [`Client::deserialize`](crate::Client::deserialize). Only the plugin that compiled the program,
    /// in the same version and for the same kind of device, can read the result.
    ///
    /// Returns an error if the plugin cannot serialize the program.
    #[doc(alias = "PJRT_Executable_Serialize")]
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        // SAFETY: the executable is the plugin's; the result is the caller's to destroy.
        let executable =
            unsafe { call!(plugin, PJRT_LoadedExecutable_GetExecutable { loaded_executable: self.raw }) }?
                .executable;
        // SAFETY: the executable is the plugin's, and alive until it is destroyed below.
        let serialized = unsafe { call!(plugin, PJRT_Executable_Serialize { executable }) };
        let bytes = serialized.map(|args| {
            // SAFETY: the plugin returned the bytes with their length; they live until the deleter is
            // called, and are copied.
            let bytes = unsafe { to_vec(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size) };
            if let Some(delete) = args.serialized_executable_deleter {
                // SAFETY: the deleter came with the object, and is called once.
                unsafe { delete(args.serialized_executable) };
            }
            bytes
        });
        // SAFETY: nobody uses it afterwards.
        let _ = unsafe { call!(plugin, PJRT_Executable_Destroy { executable }) };
        bytes
    }

    /// Starts the program on all of its devices of this process; `arguments` has a list for each. An
    /// argument that an output aliases (`tf.aliasing_output`) is donated, and cannot be used
    /// afterwards. If the program runs on devices of other processes, they must start it, too.
    ///
    /// The order of arguments, their dtypes and shapes must be the program's: XLA only checks their
    /// sizes in bytes.
    pub fn execute(&self, arguments: &[Vec<&Buffer>]) -> Result<Execution> {
        self.execute_without_donating(arguments, &[])
    }

    /// Starts the program like [`execute`](Executable::execute), but does not donate the arguments
    /// with the indices `kept`, on any device. They stay usable, and the outputs that alias them
    /// take new memory.
    #[doc(alias = "non_donatable_input_indices")]
    pub fn execute_without_donating(&self, arguments: &[Vec<&Buffer>], kept: &[usize]) -> Result<Execution> {
        let mut call = self.prepare(arguments, kept, true)?;
        let result = call.run(&self.handle);
        self.finish(call, result)
    }

    /// Starts the program like [`execute_without_donating`](Executable::execute_without_donating) and
    /// returns the outputs of each device, without events: to make them takes the plugin time, and
    /// who reads an output waits for it anyway.
    pub fn launch(&self, arguments: &[Vec<&Buffer>], kept: &[usize]) -> Result<Vec<Vec<Buffer>>> {
        let mut call = self.prepare(arguments, kept, false)?;
        let result = call.run(&self.handle);
        Ok(self.finish(call, result)?.outputs)
    }

    /// Starts the program like [`execute_without_donating`](Executable::execute_without_donating), on a
    /// thread of its own, and calls `check` every 20 ms until it is started. If `check` returns an
    /// error, so does this, at once; after `timeout` it returns [`ErrorKind::Deadline`]. In both cases
    /// the client is abandoned, because the start cannot be cancelled.
    ///
    /// Use it for the first run of a program on devices of several processes: the start then waits for
    /// all of them, and would wait forever for one that is gone.
    pub fn execute_checking(
        &self,
        arguments: &[Vec<&Buffer>],
        kept: &[usize],
        timeout: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<Execution> {
        let mut call = self.prepare(arguments, kept, true)?;
        let handle = self.handle.clone();
        let (send, started) = channel();
        let work = move || {
            let result = call.run(&handle);
            // Nobody may wait any longer: then the client is abandoned, and the outputs are leaked.
            let _ = send.send((call, result));
        };
        thread::Builder::new().name("execute".into()).spawn(work)?;
        let begun = Instant::now();
        loop {
            match started.recv_timeout(CHECK_INTERVAL.min(timeout)) {
                Ok((call, result)) => return self.finish(call, result),
                Err(RecvTimeoutError::Disconnected) => {
                    self.handle.abandon();
                    return Err(Error::new(ErrorKind::Engine, "a panic ended the start of a program"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Abandoning the client keeps everything alive that the call uses: nothing of an abandoned
            // client is destroyed.
            check().inspect_err(|_| self.handle.abandon())?;
            if begun.elapsed() >= timeout {
                self.handle.abandon();
                let why = format!("a program did not start within {} s", timeout.as_secs_f64());
                return Err(Error::new(ErrorKind::Deadline, why)
                    .note("end the process: the start of a program cannot be cancelled"));
            }
        }
    }

    /// Checks the arguments, and makes room for the results.
    fn prepare(&self, arguments: &[Vec<&Buffer>], kept: &[usize], events: bool) -> Result<Call> {
        self.handle.check()?;
        self.check(arguments)?;
        Ok(Call {
            executable: self.raw,
            arguments: arguments.iter().map(|list| list.iter().map(|b| b.raw()).collect()).collect(),
            kept: kept.iter().map(|&index| index as i64).collect(),
            outputs: vec![vec![ptr::null_mut(); self.outputs.len()]; self.devices.len()],
            done: events.then(|| vec![ptr::null_mut(); self.devices.len()]),
        })
    }

    /// Takes over the results of a call.
    fn finish(&self, call: Call, result: Result<()>) -> Result<Execution> {
        result.map_err(|e| self.explain(e))?;
        let buffer = |(i, raw): (usize, _)| {
            Buffer::new(&self.handle, raw, self.outputs[i].0, self.output_sizes[i].clone())
        };
        let outputs = call.outputs.into_iter().map(|list| list.into_iter().enumerate().map(buffer).collect());
        let done = call.done.into_iter().flatten().map(|raw| Event::new(&self.handle, raw));
        Ok(Execution { outputs: outputs.collect(), done: done.collect() })
    }

    /// Adds the planned memory to an out-of-memory error. [`execute`](Executable::execute) does so;
    /// an error that is only reported by an event or a download may need it, too.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        match &self.memory {
            Ok(planned) if error.kind() == ErrorKind::Memory => {
                error.note(format!("on each device the program needs {planned}"))
            }
            _ => error,
        }
    }

    fn check(&self, arguments: &[Vec<&Buffer>]) -> Result<()> {
        if arguments.len() != self.devices.len() {
            let (given, needed) = (arguments.len(), self.devices.len());
            let why =
                format!("the program runs on {needed} devices, but {given} lists of arguments were given");
            return Err(Error::argument(why));
        }
        if arguments.iter().any(|list| list.len() != arguments[0].len()) {
            return Err(Error::argument("the devices were given different numbers of arguments"));
        }
        if !arguments.iter().flatten().all(|buffer| buffer.belongs_to(&self.handle)) {
            return Err(Error::argument("an argument is a buffer of another client"));
        }
        Ok(())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if !self.handle.is_abandoned() {
            let plugin = &self.handle.plugin;
            // SAFETY: nobody else has the executable; the plugin keeps what pending executions
            // need.
            let _ = unsafe { call!(plugin, PJRT_LoadedExecutable_Destroy { executable: self.raw }) };
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({} devices, outputs {:?})", self.devices.len(), self.outputs)
    }
}

fn device_id(handle: &Arc<Handle>, device: *mut PJRT_Device) -> Result<i64> {
    // SAFETY: device and description are the client's.
    let args = unsafe {
        let of = call!(handle.plugin, PJRT_Device_GetDescription { device })?.device_description;
        call!(handle.plugin, PJRT_DeviceDescription_Id { device_description: of })?
    };
    Ok(i64::from(args.id))
}

fn outputs(handle: &Arc<Handle>, executable: *mut PJRT_Executable) -> Result<Vec<(DType, Vec<usize>)>> {
    let plugin = &handle.plugin;
    // SAFETY: the executable is the plugin's; the lists live as long as it, have the stated
    // lengths, and are copied.
    let (count, dtypes, dims, ranks) = unsafe {
        let count = call!(plugin, PJRT_Executable_NumOutputs { executable })?.num_outputs;
        let types = call!(plugin, PJRT_Executable_OutputElementTypes { executable })?;
        let shapes = call!(plugin, PJRT_Executable_OutputDimensions { executable })?;
        let ranks = to_vec(shapes.dim_sizes, count);
        let dims = to_vec(shapes.dims, ranks.iter().sum());
        (count, to_vec(types.output_types, types.num_output_types), dims, ranks)
    };
    // `execute` makes room for the outputs described here, and the plugin writes all it has.
    if (dtypes.len(), ranks.len()) != (count, count) {
        let (dtypes, shapes) = (dtypes.len(), ranks.len());
        let why = format!("the plugin reports {dtypes} dtypes and {shapes} shapes of {count} outputs");
        return Err(Error::new(ErrorKind::Engine, why));
    }
    // `dims` holds the dimensions of all outputs, one after the other.
    let mut rest = &dims[..];
    let mut outputs = Vec::with_capacity(ranks.len());
    for (dtype, rank) in dtypes.into_iter().zip(ranks) {
        let (sizes, after) = rest.split_at_checked(rank).ok_or_else(|| {
            Error::new(ErrorKind::Engine, "the plugin reports fewer dimensions than its outputs have")
        })?;
        outputs.push((dtype::from_pjrt(dtype)?, sizes.iter().map(|&size| size as usize).collect()));
        rest = after;
    }
    Ok(outputs)
}

fn planned_memory(handle: &Arc<Handle>, executable: *mut PJRT_Executable) -> Result<PlannedMemory> {
    // SAFETY: the executable is the plugin's.
    let stats = unsafe { call!(handle.plugin, PJRT_Executable_GetCompiledMemoryStats { executable }) }?;
    let bytes = |n: i64| n.try_into().unwrap_or(0);
    Ok(PlannedMemory {
        arguments: bytes(stats.argument_size_in_bytes),
        outputs: bytes(stats.output_size_in_bytes),
        aliased: bytes(stats.alias_size_in_bytes),
        temporary: bytes(stats.temp_size_in_bytes),
        code: bytes(stats.generated_code_size_in_bytes),
    })
}
