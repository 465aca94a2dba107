//! The value that a variable has at a commit point, for a checkpoint that is written later.

use super::executor::SavedValue;
use tensorpack_tensor::{HostTensor, Result};

/// Where captured values wait until they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapturePlace {
    /// In host memory, so that the next step waits for the copy.
    Host,
    /// On the device, while the next step runs.
    Device,
}

/// The value of a variable at a commit point. Later writes and runs do not change it.
pub(crate) enum CapturedValue {
    /// A copy in host memory.
    OnHost(HostTensor),
    /// Still on its device. Another thread can download it while the next step runs.
    OnDevice(Box<dyn SavedValue>),
}

impl CapturedValue {
    /// Returns the value, and downloads it if it is on a device.
    pub(crate) fn into_host(self) -> Result<HostTensor> {
        match self {
            CapturedValue::OnHost(value) => Ok(value),
            CapturedValue::OnDevice(saved) => saved.read(),
        }
    }
}
