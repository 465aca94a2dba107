//! Devices of a client.

use crate::c_api::PJRT_Device;
use crate::c_struct::to_string;
use crate::client::Handle;
use crate::plugin::call;
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// A device of a client: a GPU, or a part of the CPU.
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
    raw: *mut PJRT_Device,
    id: i64,
    process_index: usize,
    is_addressable: bool,
    kind: String,
    description: String,
}

// SAFETY: the C API allows the use of a device from any thread; the client, which owns it, lives at
// least as long.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Statistics of a device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DeviceMemory")]
pub struct MemoryStats {
    /// Memory in use.
    pub in_use: u64,
    /// Peak memory in use, if the plugin records it.
    pub peak: Option<u64>,
    /// Memory that the plugin may use, if it has a limit.
    pub limit: Option<u64>,
}

impl Device {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut PJRT_Device) -> Result<Device> {
        let plugin = &handle.plugin;
        // SAFETY: device and description are the client's and live as long as it; the strings are
        // copied.
        let (id, process, is_addressable, kind, description) = unsafe {
            let of = call!(plugin, PJRT_Device_GetDescription { device: raw })?.device_description;
            let id = call!(plugin, PJRT_DeviceDescription_Id { device_description: of })?.id;
            let process = call!(plugin, PJRT_DeviceDescription_ProcessIndex { device_description: of })?;
            let is_addressable = call!(plugin, PJRT_Device_IsAddressable { device: raw })?.is_addressable;
            let kind = call!(plugin, PJRT_DeviceDescription_Kind { device_description: of })?;
            let text = call!(plugin, PJRT_DeviceDescription_ToString { device_description: of })?;
            (
                i64::from(id),
                process.process_index,
                is_addressable,
                to_string(kind.device_kind, kind.device_kind_size),
                to_string(text.to_string, text.to_string_size),
            )
        };
        let process_index = process.try_into().unwrap_or(0);
        Ok(Device { handle: handle.clone(), raw, id, process_index, is_addressable, kind, description })
    }

    /// The id that [`CompileOptions::devices`](crate::CompileOptions::devices) takes. It is unique
    /// among the devices of all processes.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The index of the process whose device this is.
    pub fn process_index(&self) -> usize {
        self.process_index
    }

    /// Whether it is a device of this process. Only such devices have buffers here.
    pub fn is_addressable(&self) -> bool {
        self.is_addressable
    }

    /// The vendor's name for devices of this kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The plugin's description of this device.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Statistics of the device's memory; an error if the plugin does not record them.
    #[doc(alias = "PJRT_Device_MemoryStats")]
    pub fn memory(&self) -> Result<MemoryStats> {
        self.handle.check()?;
        self.check_owner(&self.handle)?;
        // SAFETY: the device is the plugin's.
        let stats = unsafe { call!(self.handle.plugin, PJRT_Device_MemoryStats { device: self.raw }) }?;
        let if_set = |bytes: i64, is_set: bool| is_set.then_some(bytes).and_then(|n| n.try_into().ok());
        Ok(MemoryStats {
            in_use: stats.bytes_in_use.try_into().unwrap_or(0),
            peak: if_set(stats.peak_bytes_in_use, stats.peak_bytes_in_use_is_set),
            limit: if_set(stats.bytes_limit, stats.bytes_limit_is_set),
        })
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Device {
        self.raw
    }

    /// Returns an error if the device is another client's or another process's, which plugins do not
    /// check.
    pub(crate) fn check_owner(&self, client: &Arc<Handle>) -> Result<()> {
        let owner = match (Arc::ptr_eq(&self.handle, client), self.is_addressable) {
            (true, true) => return Ok(()),
            (true, false) => format!("process {}", self.process_index),
            (false, _) => "another client".into(),
        };
        Err(Error::argument(format!("{} is a device of {owner}", self.description)))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}
