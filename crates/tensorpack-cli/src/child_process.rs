//! A child process that ends when a signal ends the command, after which the command cleans up.

use std::io;
use std::process::{Command, ExitStatus};

/// How a child process ended.
pub(crate) enum ChildEnd {
    /// By itself.
    Exited(ExitStatus),
    /// It was ended, because this process has received a signal.
    #[cfg(unix)]
    Signal,
}

#[cfg(not(unix))]
pub(crate) use everywhere::CaughtSignals;
#[cfg(unix)]
pub(crate) use unix::CaughtSignals;

#[cfg(not(unix))]
mod everywhere {
    use super::*;

    /// Ctrl-C ends this process and its children together.
    pub(crate) struct CaughtSignals;

    impl CaughtSignals {
        pub(crate) fn install() -> io::Result<CaughtSignals> {
            Ok(CaughtSignals)
        }

        /// Runs a program to its end.
        pub(crate) fn run(&self, command: &mut Command) -> io::Result<ChildEnd> {
            command.status().map(ChildEnd::Exited)
        }
    }
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::process::Child;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    /// The signals that ask a process to end.
    const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    const POLL: Duration = Duration::from_millis(20);
    /// How long a child may take to end after a signal.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// The first signal that was received.
    static RECEIVED: AtomicI32 = AtomicI32::new(0);

    extern "C" fn note(signal: libc::c_int) {
        let _ = RECEIVED.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Catches signals that would end this process. When it is dropped, one that was received does.
    pub(crate) struct CaughtSignals {
        /// The actions before, of the signals that are caught.
        before: Vec<(i32, libc::sigaction)>,
    }

    impl CaughtSignals {
        pub(crate) fn install() -> io::Result<CaughtSignals> {
            let mut caught = CaughtSignals { before: Vec::new() };
            for signal in SIGNALS {
                // SAFETY: zero is a valid value of a `sigaction`; the calls read and write only it.
                unsafe {
                    let mut before: libc::sigaction = std::mem::zeroed();
                    check(libc::sigaction(signal, std::ptr::null(), &mut before))?;
                    // `nohup` and shells ignore signals on purpose.
                    if before.sa_sigaction == libc::SIG_IGN {
                        continue;
                    }
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = note as *const () as usize;
                    action.sa_flags = libc::SA_RESTART;
                    check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
                    caught.before.push((signal, before));
                }
            }
            Ok(caught)
        }

        /// Runs a program to its end, or ends it when this process receives a signal.
        pub(crate) fn run(&self, command: &mut Command) -> io::Result<ChildEnd> {
            let mut child = command.spawn()?;
            loop {
                if let Some(status) = child.try_wait()? {
                    // A signal of the terminal is for both, and the child may be the first to end.
                    let ended = if received() == 0 { ChildEnd::Exited(status) } else { ChildEnd::Signal };
                    return Ok(ended);
                }
                if received() != 0 {
                    end(&mut child)?;
                    return Ok(ChildEnd::Signal);
                }
                sleep(POLL);
            }
        }
    }

    impl Drop for CaughtSignals {
        fn drop(&mut self) {
            for (signal, before) in &self.before {
                // SAFETY: the action is the one that the system has returned.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
            }
            if received() != 0 {
                // SAFETY: `raise` takes any signal. Its sender sees the exit status that it expects.
                unsafe { libc::raise(received()) };
            }
        }
    }

    fn received() -> i32 {
        RECEIVED.load(Ordering::Relaxed)
    }

    /// Asks a child to end, and ends it if it does not.
    fn end(child: &mut Child) -> io::Result<()> {
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            sleep(POLL);
        }
        child.kill()?;
        child.wait().map(|_| ())
    }

    fn check(status: libc::c_int) -> io::Result<()> {
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
