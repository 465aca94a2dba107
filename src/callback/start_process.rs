//! Runs a process during training.

use super::{Callback, TrainCx};
use std::process::{Child, Command};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Starts a process, such as a simulator or a viewer, before training, and terminates it
/// afterwards, whether training succeeded or failed.
///
/// On Unix the process has its own process group, so that a Ctrl-C for training does not reach it.
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
    /// Runs `command`.
    pub fn new(command: Command) -> StartProcess {
        StartProcess { command, child: None }
    }

    fn program(&self) -> String {
        self.command.get_program().to_string_lossy().into_owned()
    }
}

/// Sends SIGTERM to the process, and SIGKILL if it is still running after five seconds.
fn terminate(child: &mut Child) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `kill` has no requirements. The child still runs or was not waited for, since
        // `after_train` has just got `None` from `try_wait`, so its pid has not been reused.
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
    fn chief_only(&self) -> bool {
        true
    }

    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        let started = self.command.spawn();
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot start {}: {e}", self.program()));
        self.child = Some(started.map_err(failed)?);
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot terminate {}: {e}", self.program()));
        match child.try_wait().map_err(failed)? {
            Some(status) => {
                log::warn!("{} exited before the end of training: {status}", self.program());
                Ok(())
            }
            None => terminate(&mut child).map_err(failed),
        }
    }
}
