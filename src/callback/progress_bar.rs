//! How far an epoch is, to be seen.

use super::{Callback, CollectCx, FetchHandle, GraphCx, TrainCx};
use crate::runtime::Cadence;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// A bar on a terminal, a line now and then elsewhere, with the values of some scalars.
///
/// The environment variable `TENSORPACK_PROGRESS_REFRESH` sets the seconds between two showings.
#[derive(Debug)]
pub struct ProgressBar {
    names: Vec<String>,
    scalars: Vec<(String, FetchHandle, f64)>,
    terminal: bool,
    refresh: Duration,
    epoch_began: Instant,
    first_step: i64,
    shown: Instant,
    /// How wide the last bar was, to be wiped out.
    width: usize,
}

impl Default for ProgressBar {
    fn default() -> ProgressBar {
        ProgressBar::new([])
    }
}

impl ProgressBar {
    /// With these scalars beside the bar.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> ProgressBar {
        let terminal = stderr().is_terminal();
        let usual = if terminal { 0.5 } else { 180.0 };
        let refresh = std::env::var("TENSORPACK_PROGRESS_REFRESH").ok().and_then(|s| s.parse().ok());
        let refresh = refresh.filter(|s: &f64| *s >= 0.0 && *s < 1e9).unwrap_or(usual);
        let now = Instant::now();
        ProgressBar {
            names: names.into_iter().map(String::from).collect(),
            scalars: Vec::new(),
            terminal,
            refresh: Duration::from_secs_f64(refresh),
            epoch_began: now,
            first_step: 0,
            shown: now,
            width: 0,
        }
    }

    fn show(&mut self, cx: &TrainCx<'_>, done: u64) {
        let total = cx.steps_per_epoch.max(1);
        let seconds = self.epoch_began.elapsed().as_secs_f64();
        let rate = (done as i64 - self.first_step).max(0) as f64 / seconds.max(1e-9);
        let left = if rate > 0.0 { (total - done.min(total)) as f64 / rate } else { 0.0 };
        let mut text = format!("{done}/{total} {} left {}, {rate:.1} steps/s", clock(seconds), clock(left),);
        for (name, _, value) in &self.scalars {
            text += &format!(" {name}={value:.4}");
        }
        if self.terminal {
            let full = (20 * done / total) as usize;
            let bar = format!("|{}{}| {text}", "=".repeat(full), " ".repeat(20 - full.min(20)));
            let blank = self.width.saturating_sub(bar.len());
            self.width = bar.len();
            // A terminal that is gone is no reason to end training.
            let _ = write!(stderr(), "\r{bar}{}", " ".repeat(blank)).and_then(|()| stderr().flush());
        } else {
            log::info!("epoch {}: {text}", cx.epoch_num);
        }
    }
}

/// `1:02:03`, or `02:03`.
pub(super) fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m:02}:{s:02}") }
}

impl Callback for ProgressBar {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        for name in std::mem::take(&mut self.names) {
            let tensor = g.tensor(&name)?;
            if tensor.rank() > 0 {
                return Err(Error::shape(format!("{name} is {}, not a scalar", tensor.shape())));
            }
            let short = name.rsplit('/').next().unwrap_or(&name).to_string();
            self.scalars.push((short, g.fetch(&tensor, Cadence::Deferred), f64::NAN));
        }
        Ok(())
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.first_step = if cx.resumed() { cx.local_step + 1 } else { 0 };
        self.epoch_began = Instant::now();
        self.shown = self.epoch_began;
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        for (_, fetched, value) in &mut self.scalars {
            if let Some(x) = values.scalar(*fetched) {
                *value = x;
            }
        }
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.shown.elapsed() >= self.refresh {
            self.shown = Instant::now();
            self.show(cx, (cx.local_step + 1) as u64);
        }
        Ok(())
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.terminal {
            self.show(cx, cx.steps_per_epoch);
            let _ = writeln!(stderr());
            self.width = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_clocks_do() {
        assert_eq!(clock(0.4), "00:00");
        assert_eq!(clock(62.0), "01:02");
        assert_eq!(clock(3723.0), "1:02:03");
    }
}
