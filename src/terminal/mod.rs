//! Standard error as people see it: lines that stay, and below them at most one *live line* that is
//! drawn again and again, such as a progress bar.
//!
//! Everything that writes to standard error during training goes through here, so that a log line
//! never lands in the middle of a progress bar.

mod activity;

pub(crate) use activity::Activity;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The live line, if there is one. indicatif draws it, and ignores write errors: a closed terminal
/// does not end training.
static LIVE_LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Whether a live line is allowed: not in quiet runs, and only on rank 0 of several processes.
static ALLOWED: AtomicBool = AtomicBool::new(true);

fn live_line() -> MutexGuard<'static, Option<ProgressBar>> {
    LIVE_LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether standard error is a terminal that can draw a line again.
fn is_terminal() -> bool {
    stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns whether text on standard error may have colors: on a terminal, unless the environment
/// variable `NO_COLOR` is set and not empty.
pub(crate) fn has_colors() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Allows live lines, or forbids them.
pub(crate) fn allow_live_line(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

/// Returns whether [`draw`] shows something: standard error is a terminal, and live lines are
/// allowed.
pub(crate) fn has_live_line() -> bool {
    ALLOWED.load(Ordering::Relaxed) && is_terminal()
}

/// Returns the number of characters in a line.
pub(crate) fn width() -> usize {
    usize::from(console::Term::stderr().size().1)
}

/// Writes a line that stays, above the live line. Ignores errors: training does not depend on what
/// it prints, the terminal may be gone and the disk full. (`eprintln` would panic.)
pub(crate) fn write_line(line: &str) {
    suspend(&live_line(), || {
        let _ = writeln!(stderr(), "{line}");
    });
}

/// Calls `write`, which writes to standard error or standard output by itself, while the live line
/// is hidden. If this thread or another one is drawing, it does not wait: this is for panics.
pub(crate) fn while_hidden(write: impl FnOnce()) {
    match LIVE_LINE.try_lock() {
        Ok(line) => suspend(&line, write),
        Err(_) => write(),
    }
}

fn suspend(line: &Option<ProgressBar>, write: impl FnOnce()) {
    match line {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Draws the live line. The text must fit into the [`width`].
pub(crate) fn draw(text: String) {
    let mut line = live_line();
    let bar = line.get_or_insert_with(|| new_line(ProgressDrawTarget::stderr()));
    bar.set_message(text);
    bar.force_draw();
}

/// Removes the live line from the screen.
pub(crate) fn clear() {
    if let Some(bar) = live_line().take() {
        bar.finish_and_clear();
    }
}

fn new_line(target: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(None, target).with_style(style)
}
