//! The interrupt flag: signal handlers set it, and long operations and waits check it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A flag that is set when a signal asks this process to end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    flag: Arc<AtomicUsize>,
    /// The cell in which signal handlers store the signal, if they set this flag.
    handlers: Option<&'static AtomicUsize>,
}

impl Interrupt {
    /// Creates a flag that is not set.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Creates a flag that also is set while `handlers`, in which signal handlers store the signal,
    /// is not 0.
    #[cfg(unix)]
    pub(crate) fn set_by(handlers: &'static AtomicUsize) -> Interrupt {
        Interrupt { handlers: Some(handlers), ..Interrupt::default() }
    }

    /// Sets the flag, like a signal with this number.
    pub fn set(&self, signal: i32) {
        self.flag.store(signal as usize, Ordering::Relaxed);
    }

    /// Returns the signal that was received, if any.
    pub fn signal(&self) -> Option<i32> {
        let stored = |cell: &AtomicUsize| Some(cell.load(Ordering::Relaxed) as i32).filter(|s| *s != 0);
        stored(&self.flag).or_else(|| self.handlers.and_then(stored))
    }

    /// Returns an error of kind [`ErrorKind::Interrupted`] if a signal was received.
    pub fn check(&self) -> Result<()> {
        match self.signal() {
            None => Ok(()),
            Some(s) => {
                Err(Error::new(ErrorKind::Interrupted, format!("signal {s} asked this process to end")))
            }
        }
    }

    /// Returns the cell in which handlers store the signal.
    #[cfg(not(unix))]
    pub(crate) fn cell(&self) -> Arc<AtomicUsize> {
        self.flag.clone()
    }
}
