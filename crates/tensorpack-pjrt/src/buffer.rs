//! Buffers: tensors in the memory of a device.

use crate::c_api::PJRT_Buffer;
use crate::client::Handle;
use crate::plugin::call;
use crate::{Device, Download, Event};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A tensor in the memory of a device. It may be used before the work that computes it is complete.
/// Dropping it frees the memory as soon as no work on the device uses it.
pub struct Buffer {
    handle: Arc<Handle>,
    raw: *mut PJRT_Buffer,
    dtype: DType,
    /// Shared, so that the outputs of an execution do not allocate.
    sizes: Arc<[usize]>,
}

// SAFETY: the C API allows the use of a buffer from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(
        handle: &Arc<Handle>,
        raw: *mut PJRT_Buffer,
        dtype: DType,
        sizes: Arc<[usize]>,
    ) -> Buffer {
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

    /// The size in bytes on the device, padding included.
    #[doc(alias = "PJRT_Buffer_OnDeviceSizeInBytes")]
    #[doc(alias = "device_bytes")]
    pub fn on_device_size(&self) -> Result<usize> {
        self.handle.check()?;
        // SAFETY: the buffer is the plugin's.
        let args =
            unsafe { call!(self.handle.plugin, PJRT_Buffer_OnDeviceSizeInBytes { buffer: self.raw }) }?;
        Ok(args.on_device_size_in_bytes)
    }

    /// Whether the buffer was donated to a program that writes an output in its place. Such a
    /// buffer cannot be used any more.
    #[doc(alias = "PJRT_Buffer_IsDeleted")]
    pub fn is_donated(&self) -> Result<bool> {
        self.handle.check()?;
        // SAFETY: the buffer is the plugin's.
        Ok(unsafe { call!(self.handle.plugin, PJRT_Buffer_IsDeleted { buffer: self.raw }) }?.is_deleted)
    }

    /// An event that is ready when the elements are, or with the error of the work that should have
    /// computed them.
    #[doc(alias = "ready")]
    pub fn ready_event(&self) -> Result<Event> {
        self.handle.check()?;
        // SAFETY: the buffer is the plugin's; the event is the caller's to destroy.
        let args = unsafe { call!(self.handle.plugin, PJRT_Buffer_ReadyEvent { buffer: self.raw }) }?;
        Ok(Event::new(&self.handle, args.event))
    }

    /// Copies the elements to host memory, waiting at most for `timeout`.
    #[doc(alias = "PJRT_Buffer_ToHostBuffer")]
    pub fn download(&self, timeout: Duration) -> Result<HostTensor> {
        self.start_download()?.wait(timeout)
    }

    /// Starts to copy the elements to host memory.
    pub fn start_download(&self) -> Result<Download> {
        self.handle.check()?;
        Download::start(&self.handle, self)
    }

    /// Starts to copy the buffer to another device of the client.
    #[doc(alias = "PJRT_Buffer_CopyToDevice")]
    pub fn copy_to(&self, device: &Device) -> Result<Buffer> {
        self.handle.check()?;
        device.check_owner(&self.handle)?;
        let plugin = &self.handle.plugin;
        // SAFETY: buffer and device are the plugin's.
        let args = unsafe {
            call!(plugin, PJRT_Buffer_CopyToDevice { buffer: self.raw, dst_device: device.raw() })
        }?;
        Ok(Buffer::new(&self.handle, args.dst_buffer, self.dtype, self.sizes.clone()))
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw
    }

    pub(crate) fn belongs_to(&self, client: &Arc<Handle>) -> bool {
        Arc::ptr_eq(&self.handle, client)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.handle.is_abandoned() {
            // SAFETY: nobody else has the buffer; the plugin keeps the memory that pending work
            // uses.
            let _ = unsafe { call!(self.handle.plugin, PJRT_Buffer_Destroy { buffer: self.raw }) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}{:?})", self.dtype, self.sizes)
    }
}
