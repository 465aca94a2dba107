//! Events: the ends of what runs by itself.

use crate::c_api::{OnReady, RawError, RawEvent};
use crate::client::Handle;
use crate::{Plugin, status};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The end of something that runs by itself: a copy, a program.
pub struct Event {
    handle: Arc<Handle>,
    raw: *mut RawEvent,
    /// There from the first wait that found the event still to come.
    outcome: OnceLock<Arc<Outcome>>,
}

// SAFETY: the C API says that an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// How it ended, once it has.
#[derive(Default)]
struct Outcome {
    ended: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new(handle: &Arc<Handle>, raw: *mut RawEvent) -> Event {
        Event { handle: handle.clone(), raw, outcome: OnceLock::new() }
    }

    /// Whether it has ended, well or not.
    pub fn is_ready(&self) -> Result<bool> {
        self.handle.check()?;
        let plugin = &self.handle.plugin;
        // SAFETY: the event is the plugin's.
        unsafe { plugin.ask("event_is_ready", plugin.table().event_is_ready, self.raw) }
    }

    /// Waits for the end, but no longer than `limit`. An `Err` is the error it ended with, or says that it did not end in
    /// time; then all that belongs to the client is given up.
    pub fn await_for(&self, limit: Duration) -> Result<()> {
        if self.is_ready()? {
            let plugin = &self.handle.plugin;
            // SAFETY: the event is the plugin's, and ready.
            return unsafe { plugin.ask("event_error", plugin.table().event_error, self.raw) };
        }
        let outcome = self.outcome.get_or_init(|| {
            let outcome = Arc::<Outcome>::default();
            let told = outcome.clone();
            if let Err(error) = self.on_ready(Box::new(move |ended| told.set(ended))) {
                outcome.set(Err(error));
            }
            outcome
        });
        match outcome.wait(limit) {
            Some(ended) => ended,
            None => {
                self.handle.give_up();
                let seconds = limit.as_secs_f64();
                let why = format!("a device did not finish its work within {seconds} s");
                let note = "end the process: work that runs on a device cannot be called back";
                Err(Error::new(ErrorKind::Deadline, why).note(note))
            }
        }
    }

    /// Keeps `memory` until the end.
    pub(crate) fn keep_until<T: Send + 'static>(&self, memory: T) {
        // Where that fails it is kept for ever.
        let _ = self.on_ready(Box::new(move |_| drop(memory)));
    }

    /// Calls `then` at the end, or at once if that was. Where the plugin refuses to, what `then` holds is never freed: the
    /// plugin may still be using it.
    fn on_ready(&self, then: Then) -> Result<()> {
        let plugin = self.handle.plugin.clone();
        let waiting = Box::into_raw(Box::new(Waiting { plugin, then }));
        let call = OnReady { event: self.raw, callback: Some(end), user_arg: waiting.cast() };
        let plugin = &self.handle.plugin;
        // SAFETY: the event is the plugin's; `end` takes what `waiting` points to, and is called once.
        unsafe { plugin.call("event_on_ready", plugin.table().event_on_ready, call) }?;
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.handle.is_lost() {
            let plugin = &self.handle.plugin;
            // SAFETY: the event is ours; what was registered with it does not need it.
            unsafe { plugin.destroy(plugin.table().event_destroy, self.raw) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_ready() {
            Ok(true) => "an event that has come",
            Ok(false) => "an event to come",
            Err(_) => "an event that will not come",
        })
    }
}

impl Outcome {
    fn set(&self, ended: Result<()>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) -> Option<Result<()>> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, limit, |ended| ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// What is done at an end.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

struct Waiting {
    /// Never closed, so that its own thread may let go of it last.
    plugin: Arc<Plugin>,
    then: Then,
}

/// What the plugin calls, from a thread of its own.
///
/// # Safety
/// `waiting` must come from [`Event::on_ready`], and be used once; `error` must be null or an error that is given away.
unsafe extern "C" fn end(error: *mut RawError, waiting: *mut c_void) {
    // SAFETY: made there by `Box::into_raw`, and used once.
    let Waiting { plugin, then } = *unsafe { Box::from_raw(waiting.cast::<Waiting>()) };
    // SAFETY: the error is the plugin's, and given away.
    let ended = unsafe { status::take(plugin.table(), error) };
    then(ended.map_or(Ok(()), Err));
}
