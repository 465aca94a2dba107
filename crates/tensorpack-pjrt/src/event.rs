//! Events: the completion of asynchronous work.

use crate::c_api::{PJRT_Error, PJRT_Event};
use crate::client::Handle;
use crate::plugin::call;
use crate::{Plugin, error};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The interval at which a wait calls its check.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The completion of asynchronous work: a copy, or the execution of a program.
pub struct Event {
    handle: Arc<Handle>,
    raw: *mut PJRT_Event,
    /// Set by the first wait that finds the event not ready, or when the event is watched.
    outcome: OnceLock<Arc<Outcome>>,
}

// SAFETY: the C API allows the use of an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// The result of the work, once it is complete.
#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut PJRT_Event) -> Event {
        Event { handle: handle.clone(), raw, outcome: OnceLock::new() }
    }

    /// Whether the work is complete, with or without an error.
    pub fn is_ready(&self) -> Result<bool> {
        self.handle.check()?;
        // SAFETY: the event is the plugin's.
        Ok(unsafe { call!(self.handle.plugin, PJRT_Event_IsReady { event: self.raw }) }?.is_ready)
    }

    /// Waits until the work is complete, at most for `timeout`. Returns the error of the work, or
    /// [`ErrorKind::Deadline`] if it is not complete in time; then the client is abandoned, and all
    /// calls fail.
    #[doc(alias = "PJRT_Event_Await")]
    #[doc(alias = "await_for")]
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        match self.ready_outcome()? {
            Ok(outcome) => outcome.wait(timeout).unwrap_or_else(|| Err(self.late(timeout))),
            Err(ready) => ready,
        }
    }

    /// Waits like [`wait`](Event::wait), and calls `check` every 20 ms meanwhile. If it returns an
    /// error, so does this, at once. Use it where another event can make the wait futile: work that
    /// waits for another process never completes once that is gone.
    pub fn wait_checking(&self, timeout: Duration, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let outcome = match self.ready_outcome()? {
            Ok(outcome) => outcome,
            Err(ready) => return ready,
        };
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            if let Some(result) = outcome.wait(left.min(CHECK_INTERVAL)) {
                return result;
            }
            check()?;
            if begun.elapsed() >= timeout {
                return Err(self.late(timeout));
            }
        }
    }

    /// Returns the outcome to wait for, or else the result of work that is complete.
    fn ready_outcome(&self) -> Result<std::result::Result<&Outcome, Result<()>>> {
        if let Some(outcome) = self.outcome.get() {
            self.handle.check()?;
            return Ok(Ok(outcome));
        }
        if self.is_ready()? {
            // SAFETY: the event is the plugin's, and ready.
            let result = unsafe { call!(self.handle.plugin, PJRT_Event_Error { event: self.raw }) };
            return Ok(Err(result.map(drop)));
        }
        Ok(Ok(self.outcome.get_or_init(|| {
            let outcome = Arc::<Outcome>::default();
            let shared = outcome.clone();
            if let Err(error) = self.on_ready(Box::new(move |result| shared.set(result))) {
                outcome.set(Err(error));
            }
            outcome
        })))
    }

    /// Abandons the client, and returns the error of a wait that took too long.
    fn late(&self, timeout: Duration) -> Error {
        self.handle.abandon();
        let seconds = timeout.as_secs_f64();
        let why = format!("a device did not finish its work within {seconds} s");
        Error::new(ErrorKind::Deadline, why).note("end the process: work on a device cannot be cancelled")
    }

    /// Keeps `memory` alive until the work is complete.
    pub(crate) fn keep_alive<T: Send + 'static>(&self, memory: T) {
        // If this fails the memory is leaked, since the plugin may still be using it.
        let _ = self.on_ready(Box::new(move |_| drop(memory)));
    }

    /// Keeps `memory` alive until the work is complete, and prepares a wait: one callback serves
    /// both, because each takes the plugin time.
    pub(crate) fn keep_alive_and_watch<T: Send + 'static>(&self, memory: T) {
        self.outcome.get_or_init(|| {
            let outcome = Arc::<Outcome>::default();
            let shared = outcome.clone();
            let callback = move |result| {
                drop(memory);
                shared.set(result);
            };
            if let Err(error) = self.on_ready(Box::new(callback)) {
                outcome.set(Err(error));
            }
            outcome
        });
    }

    /// Calls `callback` when the work is complete, or at once if it is already. If the plugin fails
    /// to register it, what the callback owns is leaked: the plugin may still be using it.
    fn on_ready(&self, callback: Callback) -> Result<()> {
        let plugin = self.handle.plugin.clone();
        let user_arg = Box::into_raw(Box::new(Registered { plugin, callback })).cast();
        let (event, callback) = (self.raw, Some(run_callback as _));
        // SAFETY: the event is the plugin's; `run_callback` takes ownership of `user_arg`, and is
        // called once.
        unsafe { call!(self.handle.plugin, PJRT_Event_OnReady { event, callback, user_arg }) }?;
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.handle.is_abandoned() {
            // SAFETY: nobody else has the event; callbacks registered with it do not use it.
            let _ = unsafe { call!(self.handle.plugin, PJRT_Event_Destroy { event: self.raw }) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_ready() {
            Ok(true) => "Event(ready)",
            Ok(false) => "Event(pending)",
            Err(_) => "Event(abandoned)",
        })
    }
}

impl Outcome {
    fn set(&self, result: Result<()>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.changed.notify_all();
    }

    fn wait(&self, timeout: Duration) -> Option<Result<()>> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(result, timeout, |result| result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

struct Registered {
    /// Keeps the table that errors are read with. Plugins are never unloaded, so their own thread
    /// may drop it.
    plugin: Arc<Plugin>,
    callback: Callback,
}

/// Called by the plugin, on a thread of its own.
///
/// # Safety
/// `user_arg` must come from [`Event::on_ready`], and be used once; `error` must be null or an
/// error that the callee owns.
unsafe extern "C" fn run_callback(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `Event::on_ready` made it with `Box::into_raw`, and it is used once.
    let Registered { plugin, callback } = *unsafe { Box::from_raw(user_arg.cast::<Registered>()) };
    // SAFETY: the error is the plugin's, and ours to destroy.
    let error = unsafe { error::take(plugin.api(), error) };
    callback(error.map_or(Ok(()), Err));
}
