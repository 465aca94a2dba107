//! A signal at an epoch boundary, after a callback has changed a variable there. The tests of the
//! CPU engine and of XLA share it.

use tensorpack::callback::TrainCx;
use tensorpack::prelude::*;

/// Writes a variable at the epoch boundary, and then receives a signal.
pub(crate) struct InterruptedAtTheBoundary;

impl Callback for InterruptedAtTheBoundary {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let bias = cx.session().read("fc/b")?;
        cx.session().write("fc/b", &HostTensor::new(bias.sizes().to_vec(), vec![7f32; bias.len()])?)?;
        cx.interrupt().set(libc::SIGTERM);
        cx.check_interrupt()
    }
}
