//! Clients: a plugin with the devices that it controls.

use crate::c_api::{
    PJRT_Client, PJRT_Error_Code_UNAVAILABLE as UNAVAILABLE,
    PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes as UNTIL_TRANSFER_COMPLETES, PJRT_Program,
};
use crate::c_struct::{CStruct, to_string, to_vec};
use crate::deadline::{DEFAULT_DEADLINE, call_within};
use crate::distributed::Incarnations;
use crate::key_value_callbacks::{self, RegisteredStore};
use crate::plugin::call;
use crate::{
    Buffer, CompileOptions, Device, DistributedOptions, Event, Executable, OptionValue, Plugin, dtype, exit,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The oldest minor version of the C API with everything that aborting collectives needs.
const OLDEST_ABORTING: i32 = 78;

/// A plugin with the devices that it controls. Buffers, executables and events of the client keep
/// it alive.
pub struct Client {
    handle: Arc<Handle>,
    /// The devices of this process.
    devices: Vec<Device>,
    /// The devices of all processes.
    global_devices: Vec<Device>,
}

/// The part of a client that all of its objects share.
pub(crate) struct Handle {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) raw: *mut PJRT_Client,
    abandoned: AtomicBool,
    /// The processes of the run, if collectives can be aborted.
    pub(crate) incarnations: Option<Incarnations>,
    /// Dropped after the client, which calls it until it is destroyed.
    store: ManuallyDrop<Option<RegisteredStore>>,
}

// SAFETY: the C API allows the use of a client from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Returns an error if the client was abandoned: pending work, and all work enqueued after it,
    /// may never complete.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_abandoned() {
            false => Ok(()),
            true => {
                let why = "the client was abandoned: its devices did not respond in time";
                let note = "end the process: work on a device cannot be cancelled";
                Err(Error::new(ErrorKind::Engine, why).note(note))
            }
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Called when a wait has timed out. Nothing of the client is used or destroyed from then on.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        exit::skip_exit_handlers();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Destroying a client waits for its devices, which no longer respond once it is abandoned.
        if !self.is_abandoned() {
            // SAFETY: the client is the plugin's; all that used it is gone, since it held this
            // handle.
            let _ = unsafe { call!(self.plugin, PJRT_Client_Destroy { client: self.raw }) };
            // SAFETY: not used afterwards, since the handle is being dropped. An abandoned client
            // keeps its store.
            unsafe { ManuallyDrop::drop(&mut self.store) };
        }
    }
}

impl Client {
    /// Creates a client. The options are the plugin's own, such as `cpu_device_count` (an integer)
    /// of XLA's CPU plugin, or `preallocate` (a boolean) of the CUDA plugin.
    ///
    /// A client that is not created within 300 s is an error; see [`Client::new_within`].
    #[doc(alias = "PJRT_Client_Create")]
    pub fn new(plugin: &Arc<Plugin>, options: &[(&str, OptionValue)]) -> Result<Client> {
        Client::new_within(plugin, options, DEFAULT_DEADLINE, &|| Ok(()))
    }

    /// Like [`Client::new`], with a deadline. Creating a client may wait for a driver, or for
    /// another process that uses the devices. After 5 s of waiting, a warning is logged; after the
    /// deadline, the wait is an error. `check` is called every 20 ms, and an error that it returns
    /// ends the wait.
    pub fn new_within(
        plugin: &Arc<Plugin>,
        options: &[(&str, OptionValue)],
        deadline: Duration,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Client> {
        Client::create_within(plugin, options, None, deadline, check)
    }

    /// Creates a client whose devices form one system with those of the clients of other processes.
    /// Waits until all of them have created theirs, at most until the deadline, or until `check` returns
    /// an error.
    ///
    /// Returns the store's error if it fails, such as that another process is gone. XLA's CPU plugin
    /// has no collectives between processes, so this returns [`ErrorKind::Unsupported`] if the
    /// plugin's client has only the devices of this process.
    #[doc(alias = "num_nodes")]
    #[doc(alias = "node_id")]
    pub fn new_distributed(
        plugin: &Arc<Plugin>,
        options: &[(&str, OptionValue)],
        distributed: &DistributedOptions,
        deadline: Duration,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Client> {
        let with_others = Some(distributed.clone());
        let client = Client::create_within(plugin, options, with_others, deadline, check)?;
        let processes =
            client.global_devices.iter().map(Device::process_index).max().map_or(0, |last| last + 1);
        if processes < distributed.num_nodes {
            let why = format!("the plugin {} does not support several processes", plugin.name());
            let found =
                format!("its client has devices of {processes} of {} processes", distributed.num_nodes);
            return Err(Error::new(ErrorKind::Unsupported, why).note(found));
        }
        Ok(client)
    }

    fn create_within(
        plugin: &Arc<Plugin>,
        options: &[(&str, OptionValue)],
        mut distributed: Option<DistributedOptions>,
        deadline: Duration,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Client> {
        let mut options: Vec<_> =
            options.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        if let Some(distributed) = &mut distributed {
            let (_, minor) = plugin.api_version();
            if distributed.aborts_collectives && minor < OLDEST_ABORTING {
                log::warn!("{plugin:?} cannot abort collectives, so they wait for processes that are gone");
                distributed.aborts_collectives = false;
            }
            options.extend(distributed.plugin_options()?);
        }
        let what = format!("a client of the plugin {}", plugin.name());
        let plugin = plugin.clone();
        call_within(&what, deadline, check, move || Client::create(&plugin, &options, distributed.as_ref()))
    }

    fn create(
        plugin: &Arc<Plugin>,
        options: &[(String, OptionValue)],
        distributed: Option<&DistributedOptions>,
    ) -> Result<Client> {
        let options: Vec<_> = options.iter().map(|(name, value)| value.named(name)).collect();
        let store = distributed.and_then(|d| Some(RegisteredStore::new(d.store.clone()?, d.longest_wait)));
        // SAFETY: the options live until the call returns; the callbacks live as long as the process
        // and take the number of a store, which may be gone.
        let created = unsafe {
            plugin.call("PJRT_Client_Create", plugin.api().PJRT_Client_Create, |args| {
                (args.create_options, args.num_options) = (options.as_ptr(), options.len());
                if let Some(store) = &store {
                    args.kv_get_callback = Some(key_value_callbacks::get);
                    args.kv_try_get_callback = Some(key_value_callbacks::try_get);
                    args.kv_put_callback = Some(key_value_callbacks::put);
                    args.kv_get_user_arg = store.user_arg();
                    args.kv_try_get_user_arg = store.user_arg();
                    args.kv_put_user_arg = store.user_arg();
                }
            })
        };
        let created = created.map_err(|e| match store.as_ref().and_then(RegisteredStore::error) {
            Some(cause) => cause.within("a client of several processes cannot be created"),
            None => e,
        })?;
        let aborts = distributed.filter(|d| d.aborts_collectives);
        let handle = Arc::new(Handle {
            plugin: plugin.clone(),
            raw: created.client,
            abandoned: AtomicBool::new(false),
            incarnations: aborts.map(|d| Incarnations::new(d.num_nodes)),
            store: ManuallyDrop::new(store),
        });
        // SAFETY: the client is the plugin's; the lists live as long as it, and are copied.
        let (local, global) = unsafe {
            let local = call!(plugin, PJRT_Client_AddressableDevices { client: handle.raw })?;
            let global = call!(plugin, PJRT_Client_Devices { client: handle.raw })?;
            (
                to_vec(local.addressable_devices, local.num_addressable_devices),
                to_vec(global.devices, global.num_devices),
            )
        };
        let devices = |list: Vec<_>| list.into_iter().map(|raw| Device::new(&handle, raw)).collect();
        let (devices, global_devices): (Result<_>, Result<_>) = (devices(local), devices(global));
        let client = Client { devices: devices?, global_devices: global_devices?, handle };
        client.update_processes(None, "")?;
        Ok(client)
    }

    /// Tells the plugin the state of all processes, if collectives can be aborted. It compares the
    /// state with the previous one, so the first call says that all are connected.
    fn update_processes(&self, failed: Option<usize>, message: &str) -> Result<()> {
        let Some(incarnations) = &self.handle.incarnations else { return Ok(()) };
        let mut states = incarnations.states(failed, UNAVAILABLE, message);
        let (process_infos, num_process_infos) = (states.as_mut_ptr(), states.len());
        // SAFETY: the client is the plugin's; the states, and the message that one of them points
        // to, live until the call returns.
        unsafe {
            call!(
                self.handle.plugin,
                PJRT_Client_UpdateGlobalProcessInfo {
                    client: self.handle.raw,
                    process_infos,
                    num_process_infos,
                }
            )
        }?;
        Ok(())
    }

    /// Ends the collectives that wait for process `failed`, on the devices of this process: the
    /// programs that contain them fail. `why` says what is known about the failure.
    ///
    /// Returns [`ErrorKind::Unsupported`] if the plugin cannot do this, or if the client was created
    /// without [`DistributedOptions::abort_collectives_on_failure`]. Plugins may take seconds, and
    /// may hang; call it on a thread of its own.
    #[doc(alias = "PJRT_Client_UpdateGlobalProcessInfo")]
    pub fn abort_collectives(&self, failed: usize, why: &str) -> Result<()> {
        self.handle.check()?;
        let processes = self.handle.incarnations.as_ref().map_or(0, |i| i.ids.len());
        if processes == 0 {
            let why = "this client was created without `abort_collectives_on_failure`";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if failed >= processes {
            return Err(Error::argument(format!("there is no process {failed} of {processes} processes")));
        }
        self.update_processes(Some(failed), why)
    }

    /// Gives the client up, because its devices will not respond any more: all calls fail from then
    /// on, nothing of it is destroyed, and the process exits without the exit handlers of libraries,
    /// all of which could hang.
    pub fn abandon(&self) {
        self.handle.abandon();
    }

    /// The first error of the key-value store of this client, if it has failed.
    pub fn store_error(&self) -> Option<Error> {
        self.handle.store.as_ref().and_then(RegisteredStore::error)
    }

    /// The index of this process among those of the run, 0 if there is one.
    #[doc(alias = "PJRT_Client_ProcessIndex")]
    pub fn process_index(&self) -> Result<usize> {
        // SAFETY: the client is the plugin's.
        let args =
            unsafe { call!(self.handle.plugin, PJRT_Client_ProcessIndex { client: self.handle.raw }) }?;
        Ok(args.process_index.try_into().unwrap_or(0))
    }

    /// The plugin.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.handle.plugin
    }

    /// The platform of the devices: `cpu`, `cuda`.
    pub fn platform_name(&self) -> Result<String> {
        // SAFETY: the client is the plugin's; the string lives as long as it, and is copied.
        unsafe {
            let args = call!(self.handle.plugin, PJRT_Client_PlatformName { client: self.handle.raw })?;
            Ok(to_string(args.platform_name, args.platform_name_size))
        }
    }

    /// The plugin's own description of its version, such as that of CUDA.
    pub fn platform_version(&self) -> Result<String> {
        // SAFETY: the client is the plugin's; the string lives as long as it, and is copied.
        unsafe {
            let args = call!(self.handle.plugin, PJRT_Client_PlatformVersion { client: self.handle.raw })?;
            Ok(to_string(args.platform_version, args.platform_version_size))
        }
    }

    /// The devices that this process can use.
    #[doc(alias = "PJRT_Client_AddressableDevices")]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The devices of all processes, in an order that all processes agree on. It need not be the
    /// order of the processes.
    #[doc(alias = "PJRT_Client_Devices")]
    pub fn global_devices(&self) -> &[Device] {
        &self.global_devices
    }

    /// Compiles a StableHLO module in MLIR's text format. This may take minutes, and cannot be
    /// cancelled.
    pub fn compile(&self, module: &str, options: &CompileOptions) -> Result<Executable> {
        self.handle.check()?;
        let options = options.encode()?;
        let format = "mlir";
        let program = PJRT_Program {
            // The C API takes a mutable pointer, since functions that return programs use the
            // struct, too.
            code: module.as_ptr().cast_mut().cast(),
            code_size: module.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
            ..CStruct::new()
        };
        // SAFETY: the client is the plugin's; program and options live until the call returns,
        // which only reads them.
        let compiled = unsafe {
            call!(
                self.handle.plugin,
                PJRT_Client_Compile {
                    client: self.handle.raw,
                    program: &program,
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                }
            )
        }?;
        Executable::new(&self.handle, compiled.executable)
    }

    /// Loads a program that was [serialized](Executable::serialize), on the devices that it was
    /// compiled for.
    ///
    /// # Safety
    /// `serialized` must be what [`Executable::serialize`] returned for a program of the same version of
    /// the plugin, unchanged: it contains machine code, which plugins do not check.
    #[doc(alias = "PJRT_Executable_DeserializeAndLoad")]
    pub unsafe fn deserialize(&self, serialized: &[u8]) -> Result<Executable> {
        self.handle.check()?;
        // SAFETY: the client is the plugin's; the bytes live until the call returns; what they contain
        // is the caller's promise.
        let loaded = unsafe {
            call!(
                self.handle.plugin,
                PJRT_Executable_DeserializeAndLoad {
                    client: self.handle.raw,
                    serialized_executable: serialized.as_ptr().cast(),
                    serialized_executable_size: serialized.len(),
                }
            )
        }?;
        Executable::new(&self.handle, loaded.loaded_executable)
    }

    /// Starts to copy a tensor to the memory of a device. The buffer may be used at once. The copy
    /// keeps the elements of `tensor` alive until it is complete.
    #[doc(alias = "PJRT_Client_BufferFromHostBuffer")]
    pub fn upload(&self, tensor: &HostTensor, device: &Device) -> Result<Buffer> {
        self.handle.check()?;
        device.check_owner(&self.handle)?;
        let dims: Vec<i64> = tensor.sizes().iter().map(|&size| size as i64).collect();
        // SAFETY: client and device are the plugin's; the dims live until the call returns; the
        // elements, which nobody changes while they are shared, until the event is ready, since
        // `keep_alive` holds on to them.
        let started = unsafe {
            call!(
                self.handle.plugin,
                PJRT_Client_BufferFromHostBuffer {
                    client: self.handle.raw,
                    data: tensor.as_bytes().as_ptr().cast(),
                    r#type: dtype::to_pjrt(tensor.dtype()),
                    dims: dims.as_ptr(),
                    num_dims: dims.len(),
                    host_buffer_semantics: UNTIL_TRANSFER_COMPLETES,
                    device: device.raw(),
                }
            )
        }?;
        let buffer = Buffer::new(&self.handle, started.buffer, tensor.dtype(), tensor.sizes().into());
        let done_with_host_buffer = Event::new(&self.handle, started.done_with_host_buffer);
        done_with_host_buffer.keep_alive(tensor.clone());
        Ok(buffer)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?}, {} devices)", self.handle.plugin, self.devices.len())
    }
}
