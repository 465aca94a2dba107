//! Processes beside training.

use super::{Callback, TrainCx};
use std::process::{Child, Command};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Starts a process before training and ends it afterwards, however training ended: a simulator, a viewer.
///
/// On Unix it has a process group of its own, so that a Ctrl-C meant for training does not reach it before training
/// is over.
///
/// ```
/// use std::process::Command;
/// use tensorpack::callback::StartProcess;
/// let mut board = Command::new("tensorboard");
/// board.args(["--logdir", "train_log"]);
/// let start = StartProcess::new(board);
/// ```
#[derive(Debug)]
#[doc(alias = "StartProcOrThread")]
pub struct StartProcess {
    command: Command,
    child: Option<Child>,
}

impl StartProcess {
    /// This one.
    pub fn new(command: Command) -> StartProcess {
        StartProcess { command, child: None }
    }

    fn program(&self) -> String {
        self.command.get_program().to_string_lossy().into_owned()
    }
}

/// Asks the process to end and, if it does not within five seconds, ends it.
fn end(child: &mut Child) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(5) {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    child.kill()?;
    child.wait().map(|_| ())
}

impl Callback for StartProcess {
    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        let started = self.command.spawn();
        let failed = |e| Error::new(ErrorKind::Io, format!("{} cannot be started: {e}", self.program()));
        self.child = Some(started.map_err(failed)?);
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let failed = |e| Error::new(ErrorKind::Io, format!("{} cannot be ended: {e}", self.program()));
        match child.try_wait().map_err(failed)? {
            Some(status) => {
                log::warn!("{} ended before training did: {status}", self.program());
                Ok(())
            }
            None => end(&mut child).map_err(failed),
        }
    }
}
