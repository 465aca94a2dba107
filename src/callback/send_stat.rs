//! Passes statistics to a shell command.

use super::{Callback, Statistic, TrainCx, When};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The time after which a wait for the command is logged.
const LOG_AFTER: Duration = Duration::from_secs(5);
/// The longest interval between two checks whether the command has finished.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a shell command at every trigger. Each `{NAME}` in it is replaced by the latest value of
/// the statistic `NAME`. A failing command is logged. Training waits for the command, so keep it
/// short or run it in the background; a command that exceeds the [deadline](SendStat::deadline) is
/// killed. So is one that runs when a signal asks this process to end.
///
/// ```
/// use tensorpack::callback::SendStat;
/// let send = SendStat::new("notify-send 'error {validation_error}'", ["validation_error"]);
/// ```
#[derive(Clone, Debug)]
pub struct SendStat {
    command: String,
    names: Vec<String>,
    deadline: Duration,
}

impl SendStat {
    /// Runs `command` with the statistics `names`.
    pub fn new<S: Into<String>>(command: impl Into<String>, names: impl IntoIterator<Item = S>) -> SendStat {
        let names = names.into_iter().map(Into::into).collect();
        SendStat { command: command.into(), names, deadline: Duration::from_secs(60) }
    }

    /// Sets the longest time that the command may take. Defaults to 60 s.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> SendStat {
        SendStat { deadline, ..self }
    }

    /// Waits for the command. Returns an error, and kills it, if it takes too long or if a signal
    /// asks this process to end.
    fn wait(&self, cx: &TrainCx<'_>, child: &mut Child, command: &str) -> Result<ExitStatus> {
        let start = Instant::now();
        let (mut pause, mut logged) = (Duration::from_millis(1), false);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let waited = start.elapsed();
            let ended = if waited < self.deadline {
                cx.check_interrupt()
            } else {
                let why = format!("killed after {:.1} s", waited.as_secs_f64());
                Err(Error::new(ErrorKind::Deadline, why)
                    .note("set another limit with SendStat::deadline(..)"))
            };
            if let Err(e) = ended {
                kill(child)?;
                return Err(e);
            }
            if waited >= LOG_AFTER && !std::mem::replace(&mut logged, true) {
                let seconds = self.deadline.as_secs_f64();
                log::warn!("still waiting for `{command}`; it is killed after {seconds:.0} s");
            }
            std::thread::sleep(pause.min(self.deadline - waited));
            pause = (pause * 2).min(POLL_INTERVAL);
        }
    }
}

/// Starts a command in a process group of its own, so that all its processes can be killed.
fn start(command: &str) -> std::io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    shell.spawn()
}

/// Kills a command with all its processes.
fn kill(child: &mut Child) -> std::io::Result<()> {
    // SAFETY: `kill` has no requirements. The child leads its process group (`start`) and was not
    // waited for, since `try_wait` returned `None`, so the number of the group was not reused.
    #[cfg(unix)]
    unsafe {
        libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL);
    }
    child.kill()?;
    child.wait().map(|_| ())
}

impl Callback for SendStat {
    fn chief_only(&self) -> bool {
        true
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut command = self.command.clone();
        for name in &self.names {
            let Some(value) = cx.monitors().latest(name) else {
                log::warn!("not running {}: {name} has no value yet", self.command);
                return Ok(());
            };
            command = command.replace(&format!("{{{name}}}"), &value.to_string());
        }
        let started = start(&command).map_err(Error::from);
        match started.and_then(|mut child| self.wait(cx, &mut child, &command)) {
            Ok(status) if status.success() => {}
            Ok(status) => log::error!("{command}: {status}"),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
            Err(e) => log::error!("{command}: {e}"),
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        self.names.iter().map(|name| Statistic::new(name.as_str(), When::Epoch)).collect()
    }
}
