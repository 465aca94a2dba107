//! Shows the progress of an epoch.

use super::{Callback, CollectCx, FetchHandle, GraphCx, TrainCx};
use crate::runtime::Cadence;
use indicatif::{ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// Shows the progress of an epoch and the values of some scalars: as a bar on a terminal, as log
/// lines elsewhere.
///
/// A run has at most one: yours replaces the default one.
///
/// The environment variable `TENSORPACK_PROGRESS_REFRESH` sets the seconds between two updates. It
/// defaults to 0.5 on a terminal and to 180 elsewhere.
#[derive(Debug)]
pub struct ProgressBar {
    names: Vec<String>,
    scalars: Vec<(String, FetchHandle, f64)>,
    terminal: bool,
    refresh: Duration,
    epoch_began: Instant,
    first_step: i64,
    shown: Instant,
    /// The bar of the current epoch, on a terminal.
    bar: Option<indicatif::ProgressBar>,
}

impl Default for ProgressBar {
    fn default() -> ProgressBar {
        ProgressBar::new([])
    }
}

impl ProgressBar {
    /// The name of this callback.
    pub(super) const NAME: &str = "ProgressBar";

    /// Shows these scalars beside the bar.
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
            bar: None,
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
        match &self.bar {
            Some(bar) => draw(bar, done, text),
            None => log::info!("epoch {}: {text}", cx.epoch_num),
        }
    }
}

/// Returns a bar of `total` steps. Only [`draw`] draws it.
fn new_bar(target: ProgressDrawTarget, total: u64) -> indicatif::ProgressBar {
    let style =
        ProgressStyle::with_template("|{bar:20}| {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    indicatif::ProgressBar::with_draw_target(Some(total), target).with_style(style.progress_chars("=  "))
}

/// Draws the bar. indicatif ignores write errors, so a closed terminal does not end training.
fn draw(bar: &indicatif::ProgressBar, done: u64, text: String) {
    bar.set_message(text);
    bar.set_position(done);
    bar.force_draw();
}

/// Formats a duration as `1:02:03` or `02:03`.
pub(super) fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m:02}:{s:02}") }
}

impl Callback for ProgressBar {
    fn chief_only(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        ProgressBar::NAME.into()
    }

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
        let total = cx.steps_per_epoch.max(1);
        self.bar = self.terminal.then(|| new_bar(ProgressDrawTarget::stderr(), total));
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
        if self.bar.is_some() {
            self.show(cx, cx.steps_per_epoch);
        }
        if let Some(bar) = self.bar.take() {
            // Leave the bar on the screen; the next output goes below it.
            bar.abandon();
            let _ = writeln!(stderr());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A terminal that remembers its current line.
    #[derive(Clone, Debug)]
    struct Screen {
        width: u16,
        line: Arc<Mutex<String>>,
    }

    impl indicatif::TermLike for Screen {
        fn width(&self) -> u16 {
            self.width
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.line.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.line.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn drawn(width: u16, steps: &[(u64, &str)]) -> String {
        let screen = Screen { width, line: Arc::default() };
        let bar = new_bar(ProgressDrawTarget::term_like(Box::new(screen.clone())), 40);
        for (done, text) in steps {
            draw(&bar, *done, text.to_string());
        }
        bar.abandon();
        let line = screen.line.lock().unwrap();
        line.trim_end().to_string()
    }

    #[test]
    fn the_bar_shows_the_share_of_steps_and_the_text() {
        assert_eq!(drawn(80, &[(0, "0/40")]), format!("|{}| 0/40", " ".repeat(20)));
        let half = format!("|{}{}| 20/40 cost=0.5", "=".repeat(10), " ".repeat(10));
        assert_eq!(drawn(80, &[(10, "10/40 a longer text"), (20, "20/40 cost=0.5")]), half);
        assert_eq!(drawn(80, &[(40, "40/40")]), format!("|{}| 40/40", "=".repeat(20)));
    }

    #[test]
    fn clock_formats_hours_minutes_and_seconds() {
        assert_eq!(clock(0.4), "00:00");
        assert_eq!(clock(62.0), "01:02");
        assert_eq!(clock(3723.0), "1:02:03");
    }
}
