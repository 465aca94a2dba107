//! Shows work that may take long before the first step.

use super::{clear, draw, has_live_line, width};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work between [`Activity::begin`] and the drop, such as compiling.
///
/// On a terminal, the live line names it once it takes longer than half a second. Elsewhere the log
/// does, after five seconds and then every half minute. The log also says how long it took, if that
/// was longer than two seconds. Of nested activities only the innermost is shown.
pub(crate) struct Activity {
    text: &'static str,
    begun: Instant,
    /// Dropped to end the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The activities that are under way, outermost first.
static STACK: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Work that took longer is in the log.
const LONG: Duration = Duration::from_secs(2);

fn stack<T>(with: impl FnOnce(&mut Vec<&'static str>) -> T) -> T {
    with(&mut STACK.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Activity {
    /// Begins an activity. `text` is a phrase such as `compiling`.
    pub(crate) fn begin(text: &'static str) -> Activity {
        stack(|s| s.push(text));
        let begun = Instant::now();
        let (running, ended) = channel();
        let live = has_live_line();
        let (first, next) = if live { (0.5, 0.2) } else { (5.0, 30.0) };
        let show = move || {
            let mut wait = Duration::from_secs_f64(first);
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = Duration::from_secs_f64(next);
                if stack(|s| s.last() == Some(&text)) {
                    show(text, begun.elapsed(), live);
                }
            }
        };
        // Without a thread there is only the line at the end.
        let thread = std::thread::Builder::new().name("activity".into()).spawn(show).ok();
        Activity { text, begun, running: Some(running), thread }
    }
}

fn show(text: &str, elapsed: Duration, live: bool) {
    let line = format!("{text} ... {} s", elapsed.as_secs());
    match live {
        true => draw(line.chars().take(width().saturating_sub(1)).collect()),
        false => log::info!("{line}"),
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        stack(|s| {
            if let Some(at) = s.iter().rposition(|text| *text == self.text) {
                s.remove(at);
            }
        });
        if has_live_line() {
            clear();
        }
        let elapsed = self.begun.elapsed();
        if elapsed >= LONG {
            log::info!("{} took {:.1} s", self.text, elapsed.as_secs_f64());
        }
    }
}
