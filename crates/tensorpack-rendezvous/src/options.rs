//! The settings of the control plane.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Timeouts, and where warnings go. All ranks should use the same.
#[derive(Clone)]
pub struct Options {
    pub(crate) heartbeat: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) join_timeout: Duration,
    pub(crate) on_warning: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// The defaults: a heartbeat every second, ranks that are silent for 10 seconds have failed,
    /// all ranks join within two minutes, and warnings are discarded.
    pub fn new() -> Options {
        Options {
            heartbeat: Duration::from_secs(1),
            peer_timeout: Duration::from_secs(10),
            join_timeout: Duration::from_secs(120),
            on_warning: Arc::new(|_| ()),
        }
    }

    /// Sets the interval between heartbeats (default: 1 s). It is at least a millisecond, at most a
    /// minute, and at most a quarter of the peer timeout.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Options {
        self.heartbeat = interval;
        self
    }

    /// Sets the time after which a silent rank has failed (default: 10 s, at least 100 ms).
    #[must_use]
    pub fn peer_timeout(mut self, timeout: Duration) -> Options {
        self.peer_timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Sets the time within which all ranks must join (default: 120 s).
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Options {
        self.join_timeout = timeout;
        self
    }

    /// Sets the function that is called with warnings, such as that of a stranger's connection. It
    /// is called on the coordinator's threads.
    #[must_use]
    pub fn on_warning(mut self, log: impl Fn(&str) + Send + Sync + 'static) -> Options {
        self.on_warning = Arc::new(log);
        self
    }

    /// The interval between heartbeats, within its limits.
    pub(crate) fn interval(&self) -> Duration {
        self.heartbeat.min(self.peer_timeout / 4).clamp(Duration::from_millis(1), Duration::from_secs(60))
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("heartbeat", &self.heartbeat)
            .field("peer_timeout", &self.peer_timeout)
            .field("join_timeout", &self.join_timeout)
            .finish_non_exhaustive()
    }
}
