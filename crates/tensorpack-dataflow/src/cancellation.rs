//! Ending a wait: because it took too long, or because nobody wants the result any more.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long a reader waits for a sample, unless told otherwise.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How often a thread that waits for another stage looks whether its own has been stopped.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

thread_local! {
    static CANCEL_FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Makes this thread one that ends its waits once `cancelled` is set. A stage cannot wake up those its threads wait for:
/// they are deep inside its input.
pub(crate) fn set_cancel_flag(cancelled: Arc<AtomicBool>) {
    CANCEL_FLAG.set(Some(cancelled));
}

/// Whether this thread belongs to a stage, and has to look now and then.
pub(crate) fn is_cancellable() -> bool {
    CANCEL_FLAG.with_borrow(|cancelled| cancelled.is_some())
}

/// An error if this thread's stage was stopped. Its reader is gone: nobody will see it.
pub(crate) fn check_cancelled() -> Result<()> {
    let cancelled = CANCEL_FLAG.with_borrow(|s| s.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)));
    if cancelled { Err(Error::new(ErrorKind::Deadline, "the reader was dropped")) } else { Ok(()) }
}

/// The error of a wait that took longer than `timeout`.
pub(crate) fn timeout_error(stage: &str, timeout: Duration, epoch: u64, index: u64) -> Error {
    let why = format!("sample {index} of epoch {epoch}: {stage} did not give it within {timeout:?}");
    Error::new(ErrorKind::Deadline, why)
        .note("something before it hangs or is slow; the reader can be read again")
}
