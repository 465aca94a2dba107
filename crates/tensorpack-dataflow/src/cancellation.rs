//! Ending a wait: on a timeout, or because the consumer is gone.

use crate::sync::{Arc, AtomicBool};
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Default time a reader waits for a sample.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How often a thread blocked on another stage checks whether its own stage was cancelled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(not(loom))]
thread_local! {
    static CANCEL_FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}
#[cfg(loom)]
loom::thread_local! {
    static CANCEL_FLAG: RefCell<Option<Arc<AtomicBool>>> = RefCell::new(None);
}

/// Makes this thread's waits end once `cancelled` is set.
///
/// A stage cannot wake its threads directly: they may be blocked deep inside its input. They poll
/// this flag instead.
pub(crate) fn set_cancel_flag(cancelled: Arc<AtomicBool>) {
    CANCEL_FLAG.with(|flag| *flag.borrow_mut() = Some(cancelled));
}

/// Returns whether this thread belongs to a stage and must poll for cancellation.
pub(crate) fn is_cancellable() -> bool {
    CANCEL_FLAG.with(|flag| flag.borrow().is_some())
}

/// Returns an error if this thread's stage was cancelled. The reader is gone, so the error is never
/// seen.
pub(crate) fn check_cancelled() -> Result<()> {
    let cancelled =
        CANCEL_FLAG.with(|flag| flag.borrow().as_ref().is_some_and(|s| s.load(Ordering::Relaxed)));
    if cancelled { Err(Error::new(ErrorKind::Deadline, "the reader was dropped")) } else { Ok(()) }
}

/// The error of a wait that exceeded `timeout`.
pub(crate) fn timeout_error(stage: &str, timeout: Duration, epoch: u64, index: u64) -> Error {
    let why = format!("sample {index} of epoch {epoch}: {stage} timed out after {timeout:?}");
    Error::new(ErrorKind::Deadline, why)
        .note("an earlier stage hangs or is slow; reading again continues waiting")
}
