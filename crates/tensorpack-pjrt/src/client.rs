//! Clients: a plugin at work, with its devices.

use crate::c_api::{Args, BufferFromHost, ClientCompile, ClientCreate, List, Program, RawClient, Text};
use crate::c_api::{UNTIL_TRANSFERRED, zero};
use crate::{Buffer, CompileOptions, Device, Event, Executable, OptionValue, Plugin, dtype, exit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// A plugin at work. Making one takes hold of the devices; what it makes keeps it.
pub struct Client {
    handle: Arc<Handle>,
    devices: Vec<Device>,
}

/// What everything that belongs to a client keeps.
pub(crate) struct Handle {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) raw: *mut RawClient,
    lost: AtomicBool,
}

// SAFETY: the C API says that a client may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Fails once a wait ran past its deadline: what was begun then may never end, and whatever came after it neither.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_lost() {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Engine, "the devices did not answer in time and are given up")
                .note("end the process: work that runs on a device cannot be called back")),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn give_up(&self) {
        self.lost.store(true, Ordering::Relaxed);
        exit::end_without_cleanup();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Freeing a client waits for its devices, which have stopped answering.
        if !self.is_lost() {
            // SAFETY: it is the plugin's, and whatever used it is gone, since that kept it.
            unsafe { self.plugin.destroy(self.plugin.table().client_destroy, self.raw) };
        }
    }
}

impl Client {
    /// A client with the plugin's own options, such as `cpu_device_count` (a number) of XLA's plugin for CPUs, or
    /// `preallocate` (yes or no) of the one for CUDA.
    pub fn new(plugin: &Arc<Plugin>, options: &[(&str, OptionValue)]) -> Result<Client> {
        let options: Vec<_> = options.iter().map(|(name, value)| value.named(name)).collect();
        let create = ClientCreate { options: List::new(&options), ..zero() };
        // SAFETY: the options live until the call returns.
        let made = unsafe { plugin.call("client_create", plugin.table().client_create, create) }?;
        let handle =
            Arc::new(Handle { plugin: plugin.clone(), raw: made.client, lost: AtomicBool::new(false) });
        let ask = plugin.table().client_addressable_devices;
        // SAFETY: the client is the plugin's, and the list lives as long as it.
        let devices = unsafe { plugin.ask("client_addressable_devices", ask, handle.raw)?.to_vec() };
        let devices = devices.into_iter().map(|raw| Device::new(&handle, raw)).collect::<Result<_>>()?;
        Ok(Client { handle, devices })
    }

    /// The plugin.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.handle.plugin
    }

    /// The kind of devices: `cpu`, `cuda`.
    pub fn platform_name(&self) -> Result<String> {
        let plugin = &self.handle.plugin;
        let ask = plugin.table().client_platform_name;
        // SAFETY: the client is the plugin's, and the text lives as long as it.
        unsafe { Ok(plugin.ask("client_platform_name", ask, self.handle.raw)?.to_text()) }
    }

    /// The versions of what the plugin is made of, in its own words.
    pub fn platform_version(&self) -> Result<String> {
        let plugin = &self.handle.plugin;
        let ask = plugin.table().client_platform_version;
        // SAFETY: the client is the plugin's, and the text lives as long as it.
        unsafe { Ok(plugin.ask("client_platform_version", ask, self.handle.raw)?.to_text()) }
    }

    /// The devices that this process can use.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Compiles a module of StableHLO, given as text. This may take minutes, and cannot be ended.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<Executable> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        let encoded = options.encode()?;
        let program = Args::new(Program { code: Text::new(text), format: Text::new("mlir") });
        let (client, options) = (self.handle.raw, List::new(&encoded));
        let compile = ClientCompile { client, program: &program, options, ..zero() };
        // SAFETY: the client is the plugin's; program and options live until the call returns, which only reads them.
        let made = unsafe { plugin.call("client_compile", plugin.table().client_compile, compile) }?;
        Executable::new(&self.handle, made.executable)
    }

    /// Starts to copy a tensor to a device's memory. The buffer may be used at once; the copy keeps `tensor`'s
    /// elements until it is done.
    pub fn upload(&self, tensor: &HostTensor, device: &Device) -> Result<Buffer> {
        self.handle.check()?;
        device.check_owner(&self.handle)?;
        let plugin = &self.handle.plugin;
        let dims: Vec<i64> = tensor.sizes().iter().map(|&size| size as i64).collect();
        let from = BufferFromHost {
            client: self.handle.raw,
            data: tensor.as_bytes().as_ptr().cast(),
            dtype: dtype::number(tensor.dtype()),
            dims: List::new(&dims),
            semantics: UNTIL_TRANSFERRED,
            device: device.raw(),
            ..zero()
        };
        let call = plugin.table().client_buffer_from_host;
        // SAFETY: client and device are the plugin's; the dims live until the call returns; the elements, which nobody
        // changes while they are shared, until the event, since `keep_until` holds on to them.
        let made = unsafe { plugin.call("client_buffer_from_host", call, from) }?;
        let buffer = Buffer::new(&self.handle, made.buffer, tensor.dtype(), tensor.sizes().to_vec());
        let transferred = Event::new(&self.handle, made.done_with_host);
        transferred.keep_until(tensor.clone());
        Ok(buffer)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client of {:?} with {} devices", self.handle.plugin, self.devices.len())
    }
}
