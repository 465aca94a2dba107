//! Downloads: copies from a device to host memory.

use crate::c_api::*;
use crate::c_struct::CStruct;
use crate::client::Handle;
use crate::plugin::call;
use crate::{Buffer, Event};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, HostTensor, Result, bf16, f16};

/// A copy from a device to host memory that was started. Dropping it does not cancel the copy.
#[doc(alias = "PJRT_Buffer_ToHostBuffer")]
pub struct Download {
    tensor: HostTensor,
    event: Event,
}

impl Download {
    pub(crate) fn start(handle: &Arc<Handle>, buffer: &Buffer) -> Result<Download> {
        let plugin = &handle.plugin;
        let mut tensor = HostTensor::zeros(buffer.dtype(), buffer.sizes())?;
        // A device may use another layout; host tensors are row-major.
        let minor_to_major: Vec<i64> = (0..buffer.sizes().len() as i64).rev().collect();
        let tiled = PJRT_Buffer_MemoryLayout_Tiled {
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..CStruct::new()
        };
        let mut layout = PJRT_Buffer_MemoryLayout {
            union: PJRT_Buffer_MemoryLayout_Union { tiled },
            r#type: PJRT_Buffer_MemoryLayout_Type_Tiled,
            ..CStruct::new()
        };
        let size = tensor.as_bytes().len();
        let elements = elements(&mut tensor)?;
        // SAFETY: the buffer is the plugin's; the layout lives until the call returns; the target
        // has that many bytes, which stay in place until the event is ready, since `keep_alive_and_watch`
        // holds on to them, and nobody else reads or writes them before. The plugin writes elements
        // of the tensor's dtype.
        let started = unsafe {
            call!(
                plugin,
                PJRT_Buffer_ToHostBuffer {
                    src: buffer.raw(),
                    host_layout: &mut layout,
                    dst: elements,
                    dst_size: size,
                }
            )
        }?;
        let event = Event::new(handle, started.event);
        event.keep_alive_and_watch(tensor.clone());
        Ok(Download { tensor, event })
    }

    /// Whether the copy is complete, with or without an error.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// Returns the tensor, waiting at most for `timeout`.
    pub fn wait(self, timeout: Duration) -> Result<HostTensor> {
        self.event.wait(timeout)?;
        Ok(self.tensor)
    }

    /// Returns the tensor like [`wait`](Download::wait), unless `check`, which is called every 20 ms,
    /// returns an error: then returns that at once. See [`Event::wait_checking`].
    pub fn wait_checking(self, timeout: Duration, check: impl FnMut() -> Result<()>) -> Result<HostTensor> {
        self.event.wait_checking(timeout, check)?;
        Ok(self.tensor)
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Download({}{:?}, {:?})", self.tensor.dtype(), self.tensor.sizes(), self.event)
    }
}

/// The address of the elements of a tensor that has no other reference.
fn elements(tensor: &mut HostTensor) -> Result<*mut std::ffi::c_void> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor.as_mut_slice::<f32>()?.as_mut_ptr().cast(),
        DType::F64 => tensor.as_mut_slice::<f64>()?.as_mut_ptr().cast(),
        DType::Bf16 => tensor.as_mut_slice::<bf16>()?.as_mut_ptr().cast(),
        DType::F16 => tensor.as_mut_slice::<f16>()?.as_mut_ptr().cast(),
        DType::I32 => tensor.as_mut_slice::<i32>()?.as_mut_ptr().cast(),
        DType::I64 => tensor.as_mut_slice::<i64>()?.as_mut_ptr().cast(),
        DType::U8 => tensor.as_mut_slice::<u8>()?.as_mut_ptr().cast(),
        DType::Bool => tensor.as_mut_slice::<bool>()?.as_mut_ptr().cast(),
    })
}
