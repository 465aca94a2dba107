//! Handles SIGTERM and SIGINT: finish the step, save, then terminate with the same signal.

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
    /// Installs the handlers: the first SIGTERM or SIGINT sets `interrupt`, a second one terminates
    /// the process at once.
    pub(super) fn install(interrupt: &Interrupt) -> Result<Signals> {
        let again = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the flag that the second handler sets arms the first for the next
            // signal.
            ids.push(signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?);
            ids.push(signal_hook::flag::register(signal, again.clone())?);
            ids.push(signal_hook::flag::register_usize(signal, interrupt.cell(), signal as usize)?);
        }
        Ok(Signals { ids })
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
