//! The kernel that a program is executing, for timeouts and error messages.

use crate::kir::Origin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tensorpack_tensor::Error;

/// The kernel that a session is executing, and since when. Clones share it.
#[derive(Clone, Debug)]
pub struct KernelProgress(Arc<Mutex<(Option<Arc<Origin>>, Instant)>>);

impl KernelProgress {
    pub(super) fn new() -> KernelProgress {
        KernelProgress(Arc::new(Mutex::new((None, Instant::now()))))
    }

    /// Records that a kernel starts; `None` means that all are done.
    pub(super) fn set(&self, kernel: Option<&Arc<Origin>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (kernel.cloned(), Instant::now());
    }

    /// Returns when the last kernel started, or the last run ended.
    pub(crate) fn since(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Adds the current kernel to an error, with the user's line.
    pub(crate) fn name(&self, e: Error) -> Error {
        match &self.0.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Some(kernel) => e.at(kernel.site).note(format!("it is executing {}", kernel.name)),
            None => e.note("it is executing no kernel"),
        }
    }
}
