//! Progress of a long-running task.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Reports progress on standard error if a task takes more than a moment: one updating line on a
/// terminal, occasional lines otherwise.
pub(super) struct Progress {
    what: String,
    /// Expected number of bytes, if known.
    total: Option<u64>,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(what: impl Into<String>, total: Option<u64>) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { what: what.into(), total, started: Instant::now(), shown: None, terminal }
    }

    /// Reports the number of bytes done so far.
    pub(super) fn at(&mut self, bytes: u64) {
        let now = Instant::now();
        if !self.due(now) {
            return;
        }
        self.shown = Some(now);
        let line = line(&self.what, bytes, self.total, now - self.started);
        // Progress is best effort; ignore write errors.
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

fn line(what: &str, bytes: u64, total: Option<u64>, time: Duration) -> String {
    const WIDTH: usize = 20;
    let seconds = time.as_secs();
    let megabytes = |bytes| bytes as f64 / 1e6;
    match (bytes, total) {
        (0, None) => format!("{what}: {seconds} s"),
        (_, None) => format!("{what}: {:.1} MB, {seconds} s", megabytes(bytes)),
        (_, Some(total)) => {
            // The count may exceed the total, for example if data is written twice.
            let done = (WIDTH as f64 * (bytes as f64 / total.max(1) as f64).min(1.0)) as usize;
            let bar = "=".repeat(done);
            let (there, all) = (megabytes(bytes.min(total)), megabytes(total));
            format!("{what} [{bar:WIDTH$}] {there:.1} of {all:.1} MB, {seconds} s")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_print_nothing() {
        let mut progress = Progress::new("x", None);
        progress.terminal = false;
        let start = progress.started;
        let seconds = |s| start + Duration::from_secs(s);
        assert!(!progress.due(seconds(4)));
        assert!(progress.due(seconds(5)));
        progress.shown = Some(seconds(5));
        assert!(!progress.due(seconds(19)));
        assert!(progress.due(seconds(20)));
        let six = Duration::from_secs(6);
        assert_eq!(line("x", 1_250_000, None, six), "x: 1.2 MB, 6 s");
        let half = "x [==========          ] 1.0 of 2.0 MB, 6 s";
        assert_eq!(line("x", 1_000_000, Some(2_000_000), six), half);
        assert!(line("x", 5_000_000, Some(2_000_000), six).contains("====] 2.0 of 2.0 MB"));
    }
}
