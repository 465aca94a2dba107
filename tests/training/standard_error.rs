//! Runs whose standard output and standard error cannot be written: a full disk, a closed pipe, a
//! vanished terminal. Training does not depend on them.

use crate::models::{Line, line};
use crate::processes;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorpack::callback::{ProgressBar, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::io::Checkpoint;
use tensorpack::prelude::*;
use tensorpack::say;

const OUTPUT: &str = "TENSORPACK_TEST_OUTPUT";
const EPOCHS: u64 = 3;
const STEPS: u64 = 4;

/// Gives a signal time to arrive inside a run. Cuts the terminal's connection in step 2, and writes
/// the file [`IN_EPOCH_2`] when the first step of epoch 2 is done.
struct Slow(PathBuf);

/// A line of the log that announces an epoch does not tell that one of its steps was run.
const IN_EPOCH_2: &str = "in-epoch-2";

static CONNECTION_LOST: AtomicBool = AtomicBool::new(false);

impl Callback for Slow {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        CONNECTION_LOST.store(cx.global_step >= 2, Ordering::Relaxed);
        if cx.global_step == STEPS + 1 {
            std::fs::write(&self.0, "")?;
        }
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }
}

/// A run that writes to both streams from many places: samples, skipped samples, the log.
fn train(dir: &Path) -> Result<()> {
    let data = line(STEPS as usize + 1).print(2).map(|sample| {
        let bad = sample[0].as_slice::<f32>()?[0] == 0.0;
        if bad { Err(Error::argument("a sample that cannot be read")) } else { Ok(sample) }
    });
    let data = data.skip_errors(5);
    data.test_speed(3)?;
    let config = TrainConfig::new(Line, data)
        .callback(ModelSaver::new())
        .callback(ProgressBar::new(["cost"]))
        .callback(Slow(dir.join(IN_EPOCH_2)))
        .steps_per_epoch(STEPS)
        .max_epoch(EPOCHS)
        .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
}

/// A file descriptor to which every write fails.
fn unwritable(kind: &str) -> OwnedFd {
    match kind {
        "full" => File::options().write(true).open("/dev/full").unwrap().into(),
        // The reader is closed at once, as by `head`.
        "closed pipe" => std::io::pipe().unwrap().1.into(),
        _ => vanishing_terminal(),
    }
}

/// A pseudo-terminal that a thread reads until the connection is lost.
fn vanishing_terminal() -> OwnedFd {
    // SAFETY: `name` outlives the calls that write and read it, which are told its length; the
    // descriptors are open (asserted) and owned by nobody else.
    let (mut master, slave) = unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let slave = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY);
        assert!(slave >= 0);
        assert_eq!(libc::fcntl(master, libc::F_SETFL, libc::O_NONBLOCK), 0);
        (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    std::thread::spawn(move || {
        while !CONNECTION_LOST.load(Ordering::Relaxed) {
            // Nothing may have been written yet.
            let _ = master.read(&mut [0; 4096]);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    slave
}

/// The main function of the child process. It does nothing in an ordinary run of the tests.
#[test]
fn child() {
    let (Some(dir), Ok(kind)) = (processes::dir(), std::env::var(OUTPUT)) else { return };
    let output = unwritable(&kind);
    for stream in [1, 2] {
        // SAFETY: both descriptors are open, and `dup2` does not touch memory.
        assert!(unsafe { libc::dup2(output.as_raw_fd(), stream) } >= 0);
    }
    // The progress bar draws on terminals only.
    assert_eq!(std::io::stderr().is_terminal(), kind == TERMINAL);
    say!("a line that nobody reads");
    let ended = train(&dir);
    say!("another one: {}", ended.is_ok());
    std::process::exit(i32::from(ended.is_err()));
}

fn start(dir: &Path, kind: &str) -> std::process::Child {
    processes::command("standard_error::child", dir)
        .env(OUTPUT, kind)
        .env("TENSORPACK_PROGRESS_REFRESH", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn latest_step(dir: &Path) -> u64 {
    let latest = std::fs::read_to_string(dir.join("checkpoints/latest")).unwrap_or_default();
    Checkpoint::load(dir.join("checkpoints").join(latest.trim())).unwrap().global_step
}

const TERMINAL: &str = "vanishing terminal";
const KINDS: [&str; 3] = ["full", "closed pipe", TERMINAL];

#[test]
fn an_unwritable_standard_error_does_not_end_training() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let status = start(dir.path(), kind).wait().unwrap();
        let log = std::fs::read_to_string(dir.path().join("log.log")).unwrap_or_default();
        assert!(status.success(), "{kind}: {status}; {log}");
        assert_eq!(latest_step(dir.path()), EPOCHS * STEPS, "{kind}");
        assert!(log.contains("training finished"), "{kind}: {log}");
    }
}

#[test]
fn a_signal_saves_even_if_standard_error_is_unwritable() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let mut child = start(dir.path(), kind);
        let begun = Instant::now();
        while !dir.path().join(IN_EPOCH_2).exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{kind}: epoch 2 never started");
            assert!(child.try_wait().unwrap().is_none(), "{kind}: the run ended before the signal");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the child has not been waited for, so its pid has not been reused.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{kind}: {status}");
        let step = latest_step(dir.path());
        assert!(step > STEPS, "{kind}: saved step {step}");
    }
}
