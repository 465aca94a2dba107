//! Records what devices execute that have an execution queue of their own.

use tensorpack_tensor::Result;
use tensorpack_timeline::ThreadEvents;

/// A recording of the devices of an executor, which ends when it is finished or dropped.
pub trait DeviceProfiler: Send {
    /// Waits for what was launched, ends the recording and returns it.
    fn finish(self: Box<Self>) -> Result<Vec<DeviceEvents>>;
}

/// What one device executed, on the clock of the host.
#[derive(Clone, Debug)]
pub struct DeviceEvents {
    /// The name of the device.
    pub name: String,
    /// The kernels and copies of each of its streams.
    pub streams: Vec<ThreadEvents>,
}
