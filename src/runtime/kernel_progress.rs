//! Where a program is, for those who wait for it.

use crate::kir::Origin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tensorpack_tensor::Error;

/// The kernel a session is at, and since when. Clones are the same.
#[derive(Clone, Debug)]
pub struct KernelProgress(Arc<Mutex<(Option<Arc<Origin>>, Instant)>>);

impl KernelProgress {
    pub(super) fn new() -> KernelProgress {
        KernelProgress(Arc::new(Mutex::new((None, Instant::now()))))
    }

    /// A kernel begins; `None`: all are done.
    pub(super) fn set(&self, kernel: Option<&Arc<Origin>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (kernel.cloned(), Instant::now());
    }

    /// When the last kernel began, or the last run ended.
    pub(crate) fn since(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// An error that says which kernel it is at, and points at the user's line.
    pub(crate) fn name(&self, e: Error) -> Error {
        match &self.0.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Some(kernel) => e.at(kernel.site).note(format!("it is at {}", kernel.name)),
            None => e.note("it is at none of its kernels"),
        }
    }
}
