//! Compiling, with a word now and then that it is going on.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{Client, CompileOptions, Executable};
use tensorpack_tensor::Result;

/// After how long a compilation is first worth a line.
const QUIET: Duration = Duration::from_secs(1);
/// And after how long the next ones are.
const REMINDER: Duration = Duration::from_secs(15);

/// Compiles `text` for the devices the options name. What takes long says so.
pub(super) fn compile(
    client: &Client,
    text: &str,
    options: &CompileOptions,
    target: &str,
) -> Result<Executable> {
    let started = Instant::now();
    let (done, waiting) = channel::<()>();
    let made = thread::scope(|s| {
        s.spawn(move || {
            let mut pause = QUIET;
            while waiting.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                log::info!("XLA compiles for {target}, {:.0} s so far", started.elapsed().as_secs_f64());
                pause = REMINDER;
            }
        });
        let made = client.compile(text, options);
        drop(done);
        made
    })?;
    if started.elapsed() > QUIET {
        log::info!("XLA compiled for {target} in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(made)
}
