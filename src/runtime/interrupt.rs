//! The interrupt flag: signal handlers set it, and long operations and waits check it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A flag that is set when a signal asks this process to end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Creates a flag that is not set.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Sets the flag, like a signal with this number.
    pub fn set(&self, signal: i32) {
        self.0.store(signal as usize, Ordering::Relaxed);
    }

    /// Returns the signal that was received, if any.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|s| *s != 0)
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
    pub(crate) fn cell(&self) -> Arc<AtomicUsize> {
        self.0.clone()
    }
}
