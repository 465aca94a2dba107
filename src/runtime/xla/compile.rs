//! Compilation in a separate thread, with progress messages.

use super::target::Target;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{CompileOptions, Executable};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The time after which a compilation is first logged.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);
/// The interval between further messages.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(15);
/// The interval at which the wait checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Compiles `text` for the devices in the options. Logs compilations that take long.
///
/// A compilation cannot be canceled, so it runs in its own thread. If the process is interrupted
/// meanwhile, this function returns an error at once and abandons the thread. So it does if another
/// process of the run fails and the program `spans_processes`. Others go on: the search for a value
/// that is not finite must name it although all processes fail.
pub(super) fn compile(
    target: &Target,
    text: &str,
    options: CompileOptions,
    name: &str,
    spans_processes: bool,
) -> Result<Executable> {
    let started = Instant::now();
    let (send, made) = channel();
    let (client, text) = (target.client.clone(), text.to_string());
    let work = move || {
        // The receiver is gone after an interrupt; ignore the send error.
        let _ = send.send(client.compile(&text, &options));
    };
    thread::Builder::new().name("compiler".into()).spawn(work)?;
    let mut next_message = FIRST_MESSAGE;
    let made = loop {
        match made.recv_timeout(POLL_INTERVAL) {
            Ok(made) => break made.map_err(|e| target.explain(e))?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Engine, format!("XLA's compiler for {name} panicked")));
            }
            Err(RecvTimeoutError::Timeout) => {
                target.interrupt.check()?;
                if spans_processes {
                    target.check_peers()?;
                }
            }
        }
        if started.elapsed() >= next_message {
            log::info!("XLA compiles for {name}, {:.0} s so far", started.elapsed().as_secs_f64());
            next_message += MESSAGE_INTERVAL;
        }
    };
    if started.elapsed() > FIRST_MESSAGE {
        log::info!("XLA compiled for {name} in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(made)
}
