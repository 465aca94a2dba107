//! SIGTERM and SIGINT: finish the step, save, say goodbye, then die by the same signal.

use crate::runtime::Interrupt;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tensorpack_tensor::Result;

/// Handlers that live as long as this.
pub(super) struct Signals {
    ids: Vec<SigId>,
}

impl Signals {
    /// From here on, the first SIGTERM or SIGINT sets `interrupt`, and a second ends the process at once.
    pub(super) fn watch(interrupt: &Interrupt) -> Result<Signals> {
        let again = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the second of a pair arms the first for the next time.
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

/// Ends the process as the signal would have, so that whoever sent it sees what it expects.
pub(super) fn die_by(signal: i32) -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
