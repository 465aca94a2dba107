//! Handles SIGTERM and SIGINT on systems without `sigaction`: finish the step, save, then terminate.

use crate::runtime::Interrupt;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tensorpack_tensor::Result;

/// Signal handlers, removed on drop.
pub(super) struct Signals {
    ids: Vec<SigId>,
}

impl Signals {
    /// Installs the handlers, and returns with them the flag that the first signal sets. A second one terminates
    /// the process at once.
    pub(super) fn install() -> Result<(Signals, Interrupt)> {
        let interrupt = Interrupt::new();
        let again = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the flag that the second handler sets arms the first for the next
            // signal.
            ids.push(signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?);
            ids.push(signal_hook::flag::register(signal, again.clone())?);
            ids.push(signal_hook::flag::register_usize(signal, interrupt.cell(), signal as usize)?);
        }
        Ok((Signals { ids }, interrupt))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Terminates the process as the signal would have, so that its sender sees the expected exit
/// status.
pub(super) fn terminate_by(signal: i32) -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}

/// Signals that a launcher repeats are not told from others here.
pub(super) fn expect_repeats() {}
