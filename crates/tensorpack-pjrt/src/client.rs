//! Clients: a plugin with the devices that it controls.

use crate::c_api::{
    PJRT_Client, PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes as UNTIL_TRANSFER_COMPLETES,
    PJRT_Program,
};
use crate::c_struct::{CStruct, to_string, to_vec};
use crate::deadline::{DEFAULT_DEADLINE, call_within};
use crate::plugin::call;
use crate::{Buffer, CompileOptions, Device, Event, Executable, OptionValue, Plugin, dtype, exit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// A plugin with the devices that it controls. Buffers, executables and events of the client keep
/// it alive.
pub struct Client {
    handle: Arc<Handle>,
    devices: Vec<Device>,
}

/// The part of a client that all of its objects share.
pub(crate) struct Handle {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) raw: *mut PJRT_Client,
    abandoned: AtomicBool,
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
        let options: Vec<_> = options.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let what = format!("a client of the plugin {}", plugin.name());
        let plugin = plugin.clone();
        call_within(&what, deadline, check, move || Client::create(&plugin, &options))
    }

    fn create(plugin: &Arc<Plugin>, options: &[(String, OptionValue)]) -> Result<Client> {
        let options: Vec<_> = options.iter().map(|(name, value)| value.named(name)).collect();
        let (create_options, num_options) = (options.as_ptr(), options.len());
        // SAFETY: the options live until the call returns.
        let created = unsafe { call!(plugin, PJRT_Client_Create { create_options, num_options }) }?;
        let abandoned = AtomicBool::new(false);
        let handle = Arc::new(Handle { plugin: plugin.clone(), raw: created.client, abandoned });
        // SAFETY: the client is the plugin's; the list lives as long as it, and is copied.
        let devices = unsafe {
            let args = call!(plugin, PJRT_Client_AddressableDevices { client: handle.raw })?;
            to_vec(args.addressable_devices, args.num_addressable_devices)
        };
        let devices = devices.into_iter().map(|raw| Device::new(&handle, raw)).collect::<Result<_>>()?;
        Ok(Client { handle, devices })
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
        let buffer = Buffer::new(&self.handle, started.buffer, tensor.dtype(), tensor.sizes().to_vec());
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
