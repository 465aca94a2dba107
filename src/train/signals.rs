//! Handles SIGTERM, SIGINT and SIGHUP: finish the step, save, then terminate with the same signal.
//! SIGUSR1 records a timeline of the next steps, and SIGUSR2 prints where everything is, unless the
//! program handles them itself.
//!
//! The handlers are installed while training runs. They belong to the process, so trainings that
//! run at the same time share them: the first one installs them, the last one restores what was
//! there before.

use super::status_report;
use crate::callback::request_recording;
use crate::runtime::Interrupt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tensorpack_tensor::Result;

const SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Signals that ask for something while training goes on.
const REQUESTS: [libc::c_int; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// The first signal since the handlers were installed; 0 if there was none.
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

static HANDLERS: Mutex<Handlers> = Mutex::new(Handlers { users: 0, previous: Vec::new() });

/// The handlers of this process.
struct Handlers {
    /// The number of trainings that use them.
    users: usize,
    /// The actions they replaced.
    previous: Vec<(libc::c_int, libc::sigaction)>,
}

impl Handlers {
    fn lock() -> MutexGuard<'static, Handlers> {
        HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&mut self) -> Result<()> {
        RECEIVED.store(0, Ordering::Relaxed);
        for signal in SIGNALS {
            let previous = action_of(signal)?;
            // `nohup` starts programs that way; they are meant to go on.
            if signal == libc::SIGHUP && previous.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            set_action(signal, &own_action(handle))?;
            self.previous.push((signal, previous));
        }
        if let Err(e) = status_report::start() {
            log::warn!("SIGUSR2 prints nothing: {e}");
        }
        for signal in REQUESTS {
            let previous = action_of(signal)?;
            if previous.sa_sigaction == libc::SIG_DFL {
                set_action(signal, &own_action(handle_request))?;
                self.previous.push((signal, previous));
            }
        }
        Ok(())
    }

    /// Restores the previous actions, except where other code has installed a handler meanwhile.
    fn restore(&mut self) {
        for (signal, previous) in self.previous.drain(..) {
            let own = [handle as Handler, handle_request].map(|handler| own_action(handler).sa_sigaction);
            if action_of(signal).is_ok_and(|now| own.contains(&now.sa_sigaction)) {
                // It cannot fail: the signal is valid, as it could be set before.
                let _ = set_action(signal, &previous);
            }
        }
    }
}

type Handler = extern "C" fn(libc::c_int);

/// Handles signals until it is dropped.
pub(super) struct Signals;

impl Signals {
    /// Installs the handlers, and returns with them the flag that the first signal sets. A second
    /// signal terminates the process at once.
    pub(super) fn install() -> Result<(Signals, Interrupt)> {
        let mut handlers = Handlers::lock();
        if handlers.users == 0
            && let Err(e) = handlers.install()
        {
            handlers.restore();
            return Err(e);
        }
        handlers.users += 1;
        Ok((Signals, Interrupt::set_by(&RECEIVED)))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut handlers = Handlers::lock();
        handlers.users -= 1;
        if handlers.users == 0 {
            handlers.restore();
        }
    }
}

/// Whether a launcher may pass on a signal that this process got itself, too: a terminal sends Ctrl-C
/// to both.
static REPEATED: AtomicBool = AtomicBool::new(false);
/// When the first signal came, in milliseconds.
static RECEIVED_AT: AtomicU64 = AtomicU64::new(0);
/// A signal that comes this soon after the first, in milliseconds, may be the same one.
const SAME_WITHIN: u64 = 1000;

/// Says that a launcher may repeat signals: one that comes right after another does not count.
pub(super) fn expect_repeats() {
    REPEATED.store(true, Ordering::Relaxed);
}

/// The signal handler. It only uses what is safe in one: atomics, `clock_gettime`, `signal` and
/// `raise`.
extern "C" fn handle(signal: libc::c_int) {
    let first = RECEIVED.compare_exchange(0, signal as usize, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() {
        RECEIVED_AT.store(milliseconds(), Ordering::Relaxed);
        return;
    }
    let since = milliseconds().saturating_sub(RECEIVED_AT.load(Ordering::Relaxed));
    if !REPEATED.load(Ordering::Relaxed) || since > SAME_WITHIN {
        raise_default(signal);
    }
}

/// The handler of requests. It only uses atomics and `write`.
extern "C" fn handle_request(signal: libc::c_int) {
    match signal {
        libc::SIGUSR1 => request_recording(),
        _ => status_report::request(),
    }
}

/// The time since some moment in the past.
fn milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it may be called in a signal handler, and writes the time given to it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Raises a signal after restoring its default action, which is to terminate the process. In a
/// handler of the same signal it takes effect when the handler returns.
fn raise_default(signal: libc::c_int) {
    // SAFETY: both functions may be called in a signal handler, and take any valid signal; the
    // callers pass one of `SIGNALS`, or one that was raised.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Returns the action that calls a handler and restarts interrupted system calls.
fn own_action(handler: Handler) -> libc::sigaction {
    // SAFETY: `sigaction` is a C struct of integers and an optional function, so zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the pointer is that of a local variable.
    unsafe { libc::sigemptyset(&mut action.sa_mask) };
    action
}

/// Returns what the process does on a signal.
fn action_of(signal: libc::c_int) -> Result<libc::sigaction> {
    let mut action = own_action(handle);
    // SAFETY: the new action is null, so nothing is set; the old one is written to a local variable.
    match unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } {
        0 => Ok(action),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Sets what the process does on a signal.
fn set_action(signal: libc::c_int, action: &libc::sigaction) -> Result<()> {
    // SAFETY: `action` is `own_action`, whose handler is safe in any state of the process, or was
    // read from the process by `action_of`. The old action is not wanted, so its pointer is null.
    match unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Terminates the process as the signal would have without the trainer: a handler of the program
/// gets it, otherwise the sender sees the expected exit status. Drop [`Signals`] first.
pub(super) fn terminate_by(signal: i32) -> ! {
    // SAFETY: `raise` takes any signal. A handler of the program may run, as it may at any time.
    unsafe { libc::raise(signal) };
    // It was ignored, or its handler returned.
    raise_default(signal);
    std::process::exit(128 + signal)
}
