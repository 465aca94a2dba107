//! Stalls: a team waits for a worker that lost its core inside a chunk.
//!
//! Where other processes compete for the cores, the system runs each thread for some milliseconds
//! and then others for many. A team that waits for a worker in every kernel then takes many times as
//! long as one thread. So after a stall the caller works alone for a multiple of the stall's
//! duration. Each further stall that follows soon doubles the multiple.

use std::time::{Duration, Instant};

/// Shortest wait that counts as a stall. A model checker cannot repeat what depends on the clock.
const STALL: Duration = if cfg!(loom) { Duration::MAX } else { Duration::from_millis(2) };

/// Time alone after a first stall, in multiples of the stall's duration.
const FIRST_FACTOR: u32 = 4;

/// Longest time alone.
const MAX_ALONE: Duration = Duration::from_millis(500);

/// Decides when a caller works alone.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// The end of the time alone.
    alone_until: Option<Instant>,
    /// Time alone after the next stall, in multiples of its duration.
    factor: u32,
    /// When stalls that begin before count as repeated.
    repeated_until: Option<Instant>,
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls { alone_until: None, factor: FIRST_FACTOR, repeated_until: None }
    }
}

impl Stalls {
    /// Returns whether the caller works alone at present. Without stalls this reads no clock.
    pub(crate) fn works_alone(&mut self) -> bool {
        let Some(until) = self.alone_until else { return false };
        if Instant::now() < until {
            return true;
        }
        self.alone_until = None;
        false
    }

    /// Registers that the caller worked for `worked` on a job and then waited for a worker.
    pub(crate) fn waited(&mut self, worked: Duration, from: Instant, to: Instant) {
        let waited = to.saturating_duration_since(from);
        // The caller runs about as many chunks as a worker. A wait for one long chunk is shorter.
        if waited < STALL.max(2 * worked) {
            return;
        }
        let repeated = self.repeated_until.is_some_and(|until| from < until);
        self.factor = if repeated { self.factor.saturating_mul(2) } else { FIRST_FACTOR };
        let alone = waited.saturating_mul(self.factor).min(MAX_ALONE);
        self.alone_until = Some(to + alone);
        self.repeated_until = Some(to + 2 * alone);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn short_waits_and_waits_for_one_long_chunk_are_no_stalls() {
        let mut stalls = Stalls::default();
        let now = Instant::now();
        stalls.waited(MS / 100, now, now + MS);
        stalls.waited(10 * MS, now, now + 15 * MS);
        assert!(!stalls.works_alone());
    }

    #[test]
    fn the_time_alone_follows_the_stall_and_grows_with_repetition() {
        let mut stalls = Stalls::default();
        let mut alone = |from: Instant, waited: Duration| {
            stalls.waited(MS / 100, from, from + waited);
            stalls.alone_until.unwrap() - from - waited
        };
        let now = Instant::now();
        assert_eq!(alone(now, 5 * MS), 20 * MS);
        assert_eq!(alone(now + 30 * MS, 5 * MS), 40 * MS, "soon after the time alone");
        assert_eq!(alone(now + 60_000 * MS, 5 * MS), 20 * MS, "a minute later");
        assert_eq!(alone(now + 120_000 * MS, 10_000 * MS), MAX_ALONE);
    }

    #[test]
    fn the_time_alone_ends() {
        let mut stalls = Stalls::default();
        let begun = Instant::now() - 100 * MS;
        stalls.waited(MS / 100, begun, begun + 10 * MS);
        assert!(!stalls.works_alone() && stalls.alone_until.is_none());
        stalls.waited(MS / 100, begun, begun + 99 * MS);
        assert!(stalls.works_alone());
    }
}
