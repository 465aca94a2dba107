//! Tensors on their way from a device.

use crate::c_api::{Args, Layout, ToHost, zero};
use crate::client::Handle;
use crate::{Buffer, Event};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, HostTensor, Result, bf16};

/// A tensor on its way from a device to host memory. It may be dropped: the copy goes on for nobody.
pub struct Download {
    tensor: HostTensor,
    event: Event,
}

impl Download {
    pub(crate) fn start(handle: &Arc<Handle>, buffer: &Buffer) -> Result<Download> {
        let plugin = &handle.plugin;
        let mut tensor = HostTensor::zeros(buffer.dtype(), buffer.sizes())?;
        // A device may keep dims in another order; host tensors are row-major.
        let order: Vec<i64> = (0..buffer.sizes().len() as i64).rev().collect();
        let mut layout = Args::new(Layout::new(&order));
        let target_size = tensor.as_bytes().len();
        let target = elements(&mut tensor)?;
        let to = ToHost { source: buffer.raw(), layout: &mut layout, target, target_size, ..zero() };
        // SAFETY: the buffer is the plugin's; the layout lives until the call returns; the target has that many bytes,
        // which stay where they are until the event, since `keep_until` holds on to them, and nobody else reads or
        // writes them before. What the plugin writes are elements of the tensor's type.
        let started = unsafe { plugin.call("buffer_to_host", plugin.table().buffer_to_host, to) }?;
        let event = Event::new(handle, started.event);
        event.keep_until(tensor.clone());
        Ok(Download { tensor, event })
    }

    /// Whether the tensor is there, or will never be.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// The tensor, waiting no longer than `limit`.
    pub fn wait(self, limit: Duration) -> Result<HostTensor> {
        self.event.await_for(limit)?;
        Ok(self.tensor)
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on its way: {:?}", self.tensor.dtype(), self.tensor.sizes(), self.event)
    }
}

/// Where a tensor that nobody shares keeps its elements.
fn elements(tensor: &mut HostTensor) -> Result<*mut std::ffi::c_void> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor.as_mut_slice::<f32>()?.as_mut_ptr().cast(),
        DType::F64 => tensor.as_mut_slice::<f64>()?.as_mut_ptr().cast(),
        DType::Bf16 => tensor.as_mut_slice::<bf16>()?.as_mut_ptr().cast(),
        DType::I32 => tensor.as_mut_slice::<i32>()?.as_mut_ptr().cast(),
        DType::I64 => tensor.as_mut_slice::<i64>()?.as_mut_ptr().cast(),
        DType::U8 => tensor.as_mut_slice::<u8>()?.as_mut_ptr().cast(),
        DType::Bool => tensor.as_mut_slice::<bool>()?.as_mut_ptr().cast(),
    })
}
