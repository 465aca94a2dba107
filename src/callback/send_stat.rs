//! Passes statistics to a shell command.

use super::{Callback, Statistic, TrainCx, When};
use std::process::Command;
use tensorpack_tensor::Result;

/// Runs a shell command at every trigger. Each `{NAME}` in it is replaced by the latest value of
/// the statistic `NAME`. A failing command is logged. Training waits for the command, so keep it
/// short or run it in the background.
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
    /// Runs `command` with the statistics `names`.
    pub fn new<S: Into<String>>(command: impl Into<String>, names: impl IntoIterator<Item = S>) -> SendStat {
        SendStat { command: command.into(), names: names.into_iter().map(Into::into).collect() }
    }
}

impl Callback for SendStat {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut command = self.command.clone();
        for name in &self.names {
            let Some(value) = cx.monitors().latest(name) else {
                log::warn!("not running {}: {name} has no value yet", self.command);
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
