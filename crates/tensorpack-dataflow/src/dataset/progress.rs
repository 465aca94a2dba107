//! What a user sees while something takes long.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Says on stderr how far something is, if it takes longer than a moment: in one line on a terminal, in a line now and
/// then elsewhere.
pub(super) struct Progress {
    what: String,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(what: impl Into<String>) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { what: what.into(), started: Instant::now(), shown: None, terminal }
    }

    /// So many bytes are there by now.
    pub(super) fn at(&mut self, bytes: u64) {
        let now = Instant::now();
        if !self.due(now) {
            return;
        }
        self.shown = Some(now);
        let line = line(&self.what, bytes, now - self.started);
        // Who cannot be told is not to be stopped.
        let _ = match self.terminal {
            true => write!(std::io::stderr(), "\r{line}\x1b[K"),
            false => writeln!(std::io::stderr(), "{line}"),
        };
    }

    fn due(&self, now: Instant) -> bool {
        let (first, every) = match self.terminal {
            true => (Duration::from_secs(1), Duration::from_millis(200)),
            false => (Duration::from_secs(5), Duration::from_secs(15)),
        };
        match self.shown {
            None => now - self.started >= first,
            Some(shown) => now - shown >= every,
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, bytes: u64, time: Duration) -> String {
    let seconds = time.as_secs();
    match bytes {
        0 => format!("{what}: {seconds} s"),
        _ => format!("{what}: {:.1} MB, {seconds} s", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quick_is_not_mentioned() {
        let mut progress = Progress::new("x");
        progress.terminal = false;
        let start = progress.started;
        let seconds = |s| start + Duration::from_secs(s);
        assert!(!progress.due(seconds(4)));
        assert!(progress.due(seconds(5)));
        progress.shown = Some(seconds(5));
        assert!(!progress.due(seconds(19)));
        assert!(progress.due(seconds(20)));
        assert_eq!(line("x", 1_250_000, Duration::from_secs(6)), "x: 1.2 MB, 6 s");
    }
}
