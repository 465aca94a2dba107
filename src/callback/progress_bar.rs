//! Shows the progress of an epoch.

use super::{Callback, CollectCx, FetchHandle, GraphCx, TrainCx};
use crate::runtime::Cadence;
use crate::terminal;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// Shows the progress of an epoch, the cost and the values of some scalars: as a bar on a terminal,
/// as log lines elsewhere.
///
/// The bar is clipped to the width of the terminal; what does not fit is left out, last scalar
/// first. Without a terminal there is a line every 30 seconds or 10 % of an epoch, whichever is
/// later, and one at the end of each epoch. A run has at most one progress bar: yours replaces the
/// default one.
///
/// The cost is that of a trainer that minimizes one. Name other costs among the scalars.
///
/// The environment variable `TENSORPACK_PROGRESS_REFRESH` sets the seconds between two updates. It
/// defaults to 0.5 on a terminal. Elsewhere it replaces both the 30 seconds and the 10 %.
#[derive(Debug)]
pub struct ProgressBar {
    names: Vec<String>,
    scalars: Vec<Scalar>,
    /// Whether there is a bar rather than log lines.
    is_live: bool,
    refresh: Duration,
    /// The least number of steps between two updates.
    refresh_steps: i64,
    epoch_began: Instant,
    first_step: i64,
    shown: Instant,
    /// The step of the last update, counted from 1.
    shown_step: i64,
    /// Whether a bar is on the screen.
    is_drawn: bool,
}

#[derive(Debug)]
struct Scalar {
    name: String,
    fetched: FetchHandle,
    /// `None` until a step has been collected.
    value: Option<f64>,
}

impl Default for ProgressBar {
    fn default() -> ProgressBar {
        ProgressBar::new([])
    }
}

impl ProgressBar {
    /// The name of this callback.
    pub(super) const NAME: &str = "ProgressBar";

    /// Shows these scalars, after the cost. On most terminals there is room for three.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> ProgressBar {
        let now = Instant::now();
        ProgressBar {
            names: names.into_iter().map(String::from).collect(),
            scalars: Vec::new(),
            is_live: false,
            refresh: Duration::ZERO,
            refresh_steps: 0,
            epoch_began: now,
            first_step: 0,
            shown: now,
            shown_step: 0,
            is_drawn: false,
        }
    }

    fn line(&self, cx: &TrainCx<'_>, done: i64) -> Line {
        let seconds = self.epoch_began.elapsed().as_secs_f64();
        let rate = (done - self.first_step).max(0) as f64 / seconds.max(1e-9);
        let total = cx.steps_per_epoch as i64;
        let left = if rate > 0.0 { (total - done).max(0) as f64 / rate } else { 0.0 };
        let value = |s: &Scalar| Some(format!("{} {}", s.name, short(s.value?)));
        Line {
            epoch: (cx.epoch_num, cx.max_epoch),
            step: (done, total),
            rate: if rate >= 1.0 || rate == 0.0 {
                format!("{rate:.1} steps/s")
            } else {
                format!("{:.1} s/step", 1.0 / rate)
            },
            left: format!("{} left", clock(left)),
            scalars: self.scalars.iter().filter_map(value).collect(),
        }
    }

    fn show(&mut self, cx: &TrainCx<'_>, done: i64) {
        self.shown = Instant::now();
        self.shown_step = done;
        let line = self.line(cx, done);
        if self.is_live {
            self.is_drawn = true;
            terminal::draw(line.bar(terminal::width().saturating_sub(1)));
        } else {
            log::info!("{}", line.text());
        }
    }

    /// Turns the bar on the screen into a line that stays.
    fn keep(&mut self, cx: &TrainCx<'_>) {
        if std::mem::take(&mut self.is_drawn) {
            let done = cx.local_step + 1;
            terminal::clear();
            terminal::write_line(&self.line(cx, done).bar(terminal::width().saturating_sub(1)));
        }
    }
}

/// The bar must not stay where an error message goes, if training ends by a panic.
impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_drawn {
            terminal::clear();
        }
    }
}

/// What a progress bar says.
struct Line {
    /// This epoch and the last one.
    epoch: (u64, u64),
    /// This step of the epoch, counted from 1, and the last one.
    step: (i64, i64),
    rate: String,
    left: String,
    /// The cost, then the others: names with values.
    scalars: Vec<String>,
}

impl Line {
    /// Returns the line of a log.
    fn text(&self) -> String {
        let Line { epoch: (epoch, _), step: (step, steps), rate, left, .. } = self;
        let progress = [format!("epoch {epoch}: {step}/{steps} steps"), rate.clone(), left.clone()];
        [&progress[..], &self.scalars].concat().join(", ")
    }

    /// Returns a bar of at most `width` characters. Leaves out the last scalars if they do not fit,
    /// and draws the bar itself if there is room for it.
    fn bar(&self, width: usize) -> String {
        let ((epoch, epochs), (step, steps)) = (self.epoch, self.step);
        let head = format!("epoch {epoch}/{epochs}");
        let texts = (0..=self.scalars.len()).rev().flat_map(|n| {
            let spacious =
                [&[format!("{step}/{steps}"), self.rate.clone(), self.left.clone()], &self.scalars[..n]];
            let spacious = spacious.concat().join(", ");
            let compact = spacious.replace(" steps/s", "/s").replace(", ", " ");
            [spacious, compact]
        });
        let columns = console::measure_text_width;
        let fits = |text: &String| head.len() + 1 + columns(text) <= width;
        let mut texts = texts.filter(fits);
        let Some(text) = texts.next() else {
            return format!("{head} {step}/{steps}").chars().take(width).collect();
        };
        // Two spaces around the bar, and its two ends.
        let room = width - head.len() - columns(&text);
        let cells = room.saturating_sub(4).min(20);
        if cells < 8 {
            return format!("{head} {text}");
        }
        let filled = cells * step.clamp(0, steps) as usize / steps.max(1) as usize;
        format!("{head} |{}{}| {text}", "=".repeat(filled), " ".repeat(cells - filled))
    }
}

/// Formats a value with four decimals; in scientific notation if they would show nothing of it, or if it
/// is long.
fn short(x: f64) -> String {
    match x.abs() {
        size if size != 0.0 && !(5e-4..1e6).contains(&size) && size.is_finite() => format!("{x:.3e}"),
        _ => format!("{x:.4}"),
    }
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
        let mut shown = Vec::new();
        for name in std::mem::take(&mut self.names) {
            let tensor = g.tensor(&name)?;
            if tensor.rank() > 0 {
                return Err(Error::shape(format!("{name} is {}, not a scalar", tensor.shape())));
            }
            shown.push((name.rsplit('/').next().unwrap_or(&name).to_string(), tensor));
        }
        if let Some(cost) = g.cost()
            && shown.iter().all(|(_, tensor)| tensor.name() != cost.name())
        {
            shown.insert(0, ("cost".into(), cost));
        }
        for (name, tensor) in shown {
            let fetched = g.fetch(&tensor, Cadence::Deferred);
            self.scalars.push(Scalar { name, fetched, value: None });
        }
        Ok(())
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.is_live = terminal::has_live_line();
        let text = std::env::var("TENSORPACK_PROGRESS_REFRESH").ok().filter(|text| !text.is_empty());
        let set = text.as_deref().and_then(|text| text.parse().ok()).filter(|s: &f64| *s >= 0.0 && *s < 1e9);
        if let (Some(text), None) = (&text, set) {
            log::warn!("TENSORPACK_PROGRESS_REFRESH={text} is no number of seconds");
        }
        self.refresh = Duration::from_secs_f64(set.unwrap_or(if self.is_live { 0.5 } else { 30.0 }));
        self.refresh_steps =
            if self.is_live || set.is_some() { 0 } else { cx.steps_per_epoch.div_ceil(10) as i64 };
        self.first_step = if cx.resumed() { cx.local_step + 1 } else { 0 };
        self.epoch_began = Instant::now();
        self.shown = self.epoch_began;
        self.shown_step = self.first_step;
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        for scalar in &mut self.scalars {
            if let Some(x) = values.scalar(scalar.fetched) {
                scalar.value = Some(x);
            }
        }
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let done = cx.local_step + 1;
        if done - self.shown_step >= self.refresh_steps && self.shown.elapsed() >= self.refresh {
            self.show(cx, done);
        }
        Ok(())
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let done = cx.local_step + 1;
        if self.is_live {
            self.is_drawn = true;
            self.keep(cx);
        } else if self.shown_step != done {
            self.show(cx, done);
        }
        Ok(())
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.keep(cx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: i64) -> Line {
        Line {
            epoch: (12, 100),
            step: (step, 4000),
            rate: "12.3 steps/s".into(),
            left: "05:12 left".into(),
            scalars: ["cost 0.1234", "accuracy 0.9312", "perplexity 17.2000"].map(String::from).into(),
        }
    }

    #[test]
    fn the_bar_shows_the_share_of_steps() {
        let drawn = |step| line(step).bar(200).split('|').nth(1).map(String::from);
        assert_eq!(drawn(0), Some(" ".repeat(20)));
        assert_eq!(drawn(2000), Some(["=".repeat(10), " ".repeat(10)].concat()));
        assert_eq!(drawn(4000), Some("=".repeat(20)));
    }

    #[test]
    fn what_does_not_fit_is_left_out_last_scalar_first() {
        let expected = "epoch 12/100 123/4000, 12.3 steps/s, 05:12 left, cost 0.1234";
        assert_eq!(line(123).bar(60), expected);
        assert_eq!(line(123).bar(55), "epoch 12/100 123/4000 12.3/s 05:12 left cost 0.1234");
        assert_eq!(line(123).bar(48), "epoch 12/100 123/4000, 12.3 steps/s, 05:12 left");
        assert_eq!(line(123).bar(10), "epoch 12/1");
        let all = line(123).bar(110);
        assert!(all.contains("perplexity") && all.contains('|'), "{all}");
        for width in 0..200 {
            assert!(line(123).bar(width).chars().count() <= width, "{width}");
        }
    }

    /// A character may take two columns.
    #[test]
    fn the_width_is_that_of_the_terminal() {
        let mut line = line(123);
        line.scalars = vec!["cost 0.1234".into(), "精度 0.9312".into()];
        for width in 0..120 {
            assert!(console::measure_text_width(&line.bar(width)) <= width, "{width}");
        }
    }

    #[test]
    fn small_and_large_values_are_shown() {
        for (x, text) in [
            (0.0, "0.0000"),
            (0.0421, "0.0421"),
            (-2.5, "-2.5000"),
            (3.1e-5, "3.100e-5"),
            (1.5e12, "1.500e12"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(short(x), text);
        }
    }

    #[test]
    fn clock_formats_hours_minutes_and_seconds() {
        assert_eq!(clock(0.4), "00:00");
        assert_eq!(clock(62.0), "01:02");
        assert_eq!(clock(3723.0), "1:02:03");
    }
}
