//! Being asked to end: a flag that signal handlers set, and everything that waits or takes long looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Whether this process was asked to end, and by which signal. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// A flag that is not set.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Sets it, as the signal of this number does.
    pub fn set(&self, signal: i32) {
        self.0.store(signal as usize, Ordering::Relaxed);
    }

    /// The signal, if one came.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|s| *s != 0)
    }

    /// An error of kind [`ErrorKind::Interrupted`] if a signal came.
    pub fn check(&self) -> Result<()> {
        match self.signal() {
            None => Ok(()),
            Some(s) => {
                Err(Error::new(ErrorKind::Interrupted, format!("signal {s} asked this process to end")))
            }
        }
    }

    /// The number that handlers store into.
    pub(crate) fn cell(&self) -> Arc<AtomicUsize> {
        self.0.clone()
    }
}
