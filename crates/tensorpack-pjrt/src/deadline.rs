//! Calls of a plugin that may hang: loading it, and creating a client, which waits for drivers and
//! for other processes.

use crate::exit;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The deadline of calls that are given none.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);
/// The time after which a wait is first logged.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// The interval between further messages.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which a wait calls `check`.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs `call`, which may hang, on a thread of its own, and returns its result. After `deadline`, or
/// when `check` returns an error, the thread is abandoned, and the process will exit without the
/// exit handlers of libraries. `what` completes "waiting for ..".
pub(crate) fn call_within<T: Send + 'static>(
    what: &str,
    deadline: Duration,
    check: &dyn Fn() -> Result<()>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (send, result) = channel();
    let work = move || {
        if let Err(late) = send.send(call()) {
            // Nobody waits any longer. What came too late is leaked: to destroy it may hang, too.
            std::mem::forget(late);
        }
    };
    thread::Builder::new().name("plugin".into()).spawn(work)?;
    let begun = Instant::now();
    let mut next_message = FIRST_MESSAGE;
    loop {
        let wait = deadline.min(next_message).saturating_sub(begun.elapsed());
        match result.recv_timeout(wait.min(POLL_INTERVAL)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Engine, format!("a panic ended the wait for {what}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(interrupted) = check() {
            exit::skip_exit_handlers();
            return Err(interrupted.within(format!("waiting for {what}")));
        }
        if begun.elapsed() >= deadline {
            exit::skip_exit_handlers();
            let why = format!("waited {:.0} s for {what}", deadline.as_secs_f64());
            return Err(Error::new(ErrorKind::Deadline, why)
                .note("the driver or another process may block the device: end the process and try again"));
        }
        if begun.elapsed() >= next_message {
            log::warn!("waiting for {what}, {:.0} s so far", begun.elapsed().as_secs_f64());
            next_message += MESSAGE_INTERVAL;
        }
    }
}
