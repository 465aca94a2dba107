//! Compilation in a separate thread, with progress messages, unless the program is cached on disk.

use super::compile_cache::{Cached, Key};
use super::target::Target;
use log::Level;
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

/// Compiles `text` for the devices in the options, or loads it from the compile cache. Logs
/// compilations that take long.
///
/// A compilation cannot be canceled, so it runs in its own thread. If the process is interrupted
/// meanwhile, this function returns an error at once and abandons the thread. So it does if another
/// process of the run fails and the program `spans_processes`. Others go on: the search for a value
/// that is not finite must name it although all processes fail. Programs of clients that know several
/// processes are not cached.
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
    let cache = target.compile_cache.clone();
    let work = move || {
        let cached = cache.and_then(|cache| Some((Key::new(&client, &text, &options)?, cache)));
        let loaded = cached.as_ref().and_then(|(key, cache)| cache.load(key, &client, &options));
        let made = match loaded {
            Some(Cached { executable, compile_time }) => Ok((executable, Some(compile_time))),
            None => {
                let started = Instant::now();
                let made = client.compile(&text, &options);
                if let (Ok(executable), Some((key, cache))) = (&made, &cached) {
                    cache.store(key, executable, started.elapsed());
                }
                made.map(|executable| (executable, None))
            }
        };
        // The receiver is gone after an interrupt; ignore the send error.
        let _ = send.send(made);
    };
    thread::Builder::new().name("compiler".into()).spawn(work)?;
    let mut next_message = FIRST_MESSAGE;
    let (made, saved) = loop {
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
    let seconds = started.elapsed().as_secs_f64();
    match saved {
        Some(compile_time) => log::log!(
            if compile_time > FIRST_MESSAGE { Level::Info } else { Level::Debug },
            "XLA loaded a program for {name} from the compile cache in {seconds:.1} s instead of compiling \
             it in {:.1} s",
            compile_time.as_secs_f64()
        ),
        None if started.elapsed() > FIRST_MESSAGE => log::info!("XLA compiled for {name} in {seconds:.1} s"),
        _ => {}
    }
    Ok(made)
}
