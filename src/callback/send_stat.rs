//! Statistics to a command.

use super::{Callback, Statistic, TrainCx, When};
use std::process::Command;
use tensorpack_tensor::Result;

/// Runs a shell command at every trigger, with `{NAME}` in it replaced by the last value of the statistic `NAME`.
/// A command that fails is logged. Training waits for it: let it end soon, or go to the background.
///
/// ```
/// use tensorpack::callback::SendStat;
/// let send = SendStat::new("notify-send 'error {validation_error}'", ["validation_error"]);
/// ```
#[derive(Clone, Debug)]
pub struct SendStat {
    command: String,
    names: Vec<String>,
}

impl SendStat {
    /// This command, with these statistics.
    pub fn new<S: Into<String>>(command: impl Into<String>, names: impl IntoIterator<Item = S>) -> SendStat {
        SendStat { command: command.into(), names: names.into_iter().map(Into::into).collect() }
    }
}

impl Callback for SendStat {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut command = self.command.clone();
        for name in &self.names {
            let Some(value) = cx.monitors().latest(name) else {
                log::warn!("{name} has no value yet: {} is not run", self.command);
                return Ok(());
            };
            command = command.replace(&format!("{{{name}}}"), &value.to_string());
        }
        match Command::new("sh").arg("-c").arg(&command).status() {
            Ok(status) if status.success() => {}
            Ok(status) => log::error!("{command}: {status}"),
            Err(e) => log::error!("{command}: {e}"),
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        self.names.iter().map(|name| Statistic::new(name.as_str(), When::Epoch)).collect()
    }
}
