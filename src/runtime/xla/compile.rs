//! Compiling, with a word now and then that it is going on.

use super::target::Target;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{CompileOptions, Executable};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// After how long a compilation is first worth a line.
const QUIET: Duration = Duration::from_secs(1);
/// And after how long the next ones are.
const REMINDER: Duration = Duration::from_secs(15);
/// How often the wait looks whether the process is to end.
const GLANCE: Duration = Duration::from_millis(20);

/// Compiles `text` for the devices the options name. What takes long says so.
///
/// A compiler cannot be called back, so it works on a thread of its own: if the process is asked to end meanwhile that is
/// an error at once, and the thread is left behind.
pub(super) fn compile(
    target: &Target,
    text: &str,
    options: CompileOptions,
    name: &str,
) -> Result<Executable> {
    let started = Instant::now();
    let (send, made) = channel();
    let (client, text) = (target.client.clone(), text.to_string());
    let work = move || {
        // Nobody waits for it any more if the process ends.
        let _ = send.send(client.compile(&text, &options));
    };
    thread::Builder::new().name("compiler".into()).spawn(work)?;
    let mut next_word = QUIET;
    let made = loop {
        match made.recv_timeout(GLANCE) {
            Ok(made) => break made?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Engine, format!("XLA's compiler for {name} panicked")));
            }
            Err(RecvTimeoutError::Timeout) => target.interrupt.check()?,
        }
        if started.elapsed() >= next_word {
            log::info!("XLA compiles for {name}, {:.0} s so far", started.elapsed().as_secs_f64());
            next_word += REMINDER;
        }
    };
    if started.elapsed() > QUIET {
        log::info!("XLA compiled for {name} in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(made)
}
