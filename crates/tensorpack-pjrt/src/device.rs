//! Devices.

use crate::c_api::{self, RawDevice, zero};
use crate::client::Handle;
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// A device of a client: a GPU, or a share of the CPU.
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
    raw: *mut RawDevice,
    id: i64,
    kind: String,
    description: String,
}

// SAFETY: the C API says that a device may be used from any thread; the client, which keeps it, lives as long.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a device's memory is used for, as far as the plugin knows. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What is in use.
    pub in_use: u64,
    /// The most that ever was.
    pub peak: Option<u64>,
    /// What there is.
    pub limit: Option<u64>,
}

impl Device {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut RawDevice) -> Result<Device> {
        let plugin = &handle.plugin;
        let table = plugin.table();
        // SAFETY: device and description are the client's and live as long as it; the texts are copied.
        let (id, kind, description) = unsafe {
            let about = plugin.ask("device_description", table.device_description, raw)?;
            let id = plugin.ask("description_id", table.description_id, about)?;
            let kind = plugin.ask("description_kind", table.description_kind, about)?.to_text();
            let text = plugin.ask("description_to_string", table.description_to_string, about)?.to_text();
            (i64::from(id), kind, text)
        };
        Ok(Device { handle: handle.clone(), raw, id, kind, description })
    }

    /// The number by which [`CompileOptions::devices`](crate::CompileOptions::devices) knows it.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The vendor's name for devices like this.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The plugin's name for this one.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What its memory is used for; an `Err` where the plugin does not keep count.
    pub fn memory(&self) -> Result<DeviceMemory> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        let ask = c_api::DeviceMemory { device: self.raw, ..zero() };
        // SAFETY: the device is the plugin's.
        let told = unsafe { plugin.call("device_memory_stats", plugin.table().device_memory_stats, ask) }?;
        let in_use = told.in_use.try_into().unwrap_or(0);
        Ok(DeviceMemory { in_use, peak: told.peak.get(), limit: told.limit.get() })
    }

    pub(crate) fn raw(&self) -> *mut RawDevice {
        self.raw
    }

    /// Fails if the device is another client's: a plugin would not notice.
    pub(crate) fn check_owner(&self, client: &Arc<Handle>) -> Result<()> {
        match Arc::ptr_eq(&self.handle, client) {
            true => Ok(()),
            false => Err(Error::argument(format!("{} is a device of another client", self.description))),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}
