//! Buffers: tensors in a device's memory.

use crate::c_api::{CopyToDevice, RawBuffer, zero};
use crate::client::Handle;
use crate::{Device, Download, Event};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A tensor in a device's memory, or one that will be there when what makes it is done. Dropping it frees the memory
/// when nothing on the device needs it any more.
pub struct Buffer {
    handle: Arc<Handle>,
    raw: *mut RawBuffer,
    dtype: DType,
    sizes: Vec<usize>,
}

// SAFETY: the C API says that a buffer may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut RawBuffer, dtype: DType, sizes: Vec<usize>) -> Buffer {
        Buffer { handle: handle.clone(), raw, dtype, sizes }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of the dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The bytes it takes on the device.
    pub fn device_bytes(&self) -> Result<usize> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        // SAFETY: the buffer is the plugin's.
        unsafe { plugin.ask("buffer_device_bytes", plugin.table().buffer_device_bytes, self.raw) }
    }

    /// Whether its memory was given away: to a program that was compiled to write a result in its place. Such a buffer
    /// cannot be used any more.
    pub fn is_donated(&self) -> Result<bool> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        // SAFETY: the buffer is the plugin's.
        unsafe { plugin.ask("buffer_is_deleted", plugin.table().buffer_is_deleted, self.raw) }
    }

    /// Comes when its elements are there, or with the error of what should have made them.
    pub fn ready(&self) -> Result<Event> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        // SAFETY: the buffer is the plugin's, and the event is made for the caller.
        let event = unsafe { plugin.ask("buffer_ready_event", plugin.table().buffer_ready_event, self.raw) }?;
        Ok(Event::new(&self.handle, event))
    }

    /// The elements, waiting no longer than `limit` for them.
    pub fn download(&self, limit: Duration) -> Result<HostTensor> {
        self.start_download()?.wait(limit)
    }

    /// Starts to copy the elements to host memory.
    pub fn start_download(&self) -> Result<Download> {
        self.handle.check()?;
        Download::start(&self.handle, self)
    }

    /// Starts to copy it to another device of the client.
    pub fn copy_to(&self, device: &Device) -> Result<Buffer> {
        self.handle.check()?;
        device.check_owner(&self.handle)?;
        let plugin = &self.handle.plugin;
        let copy = CopyToDevice { buffer: self.raw, device: device.raw(), ..zero() };
        // SAFETY: buffer and device are the plugin's.
        let made =
            unsafe { plugin.call("buffer_copy_to_device", plugin.table().buffer_copy_to_device, copy) }?;
        Ok(Buffer::new(&self.handle, made.copy, self.dtype, self.sizes.clone()))
    }

    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw
    }

    pub(crate) fn belongs_to(&self, client: &Arc<Handle>) -> bool {
        Arc::ptr_eq(&self.handle, client)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.handle.is_lost() {
            let plugin = &self.handle.plugin;
            // SAFETY: the buffer is ours; the plugin keeps what it still needs of it.
            unsafe { plugin.destroy(plugin.table().buffer_destroy, self.raw) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on a device", self.dtype, self.sizes)
    }
}
