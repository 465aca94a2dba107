//! How fast training is.

use super::{Callback, Statistic, TrainCx, When};
use std::time::{Duration, Instant};
use tensorpack_tensor::Result;

/// Puts how many steps (or samples) were done in a second since the last trigger: `Throughput (steps/sec)` or
/// `Throughput (samples/sec)`. The time between epochs, in which callbacks run, does not count.
#[derive(Clone, Debug, Default)]
pub struct ThroughputTracker {
    samples_per_step: Option<f64>,
    last_step: u64,
    /// Time of finished epochs since the last trigger, and when the present one (or the last trigger) began.
    before: Duration,
    since: Option<Instant>,
}

impl ThroughputTracker {
    /// In steps.
    pub fn new() -> ThroughputTracker {
        ThroughputTracker::default()
    }

    /// In samples, of which a step takes this many: those of all towers.
    pub fn samples(per_step: u64) -> ThroughputTracker {
        ThroughputTracker { samples_per_step: Some(per_step as f64), ..ThroughputTracker::default() }
    }

    fn tag(&self) -> &'static str {
        match self.samples_per_step {
            Some(_) => "Throughput (samples/sec)",
            None => "Throughput (steps/sec)",
        }
    }
}

impl Callback for ThroughputTracker {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.last_step = cx.global_step;
        Ok(())
    }

    fn before_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.since = Some(Instant::now());
        Ok(())
    }

    fn after_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let seconds = (self.before + self.since.map_or(Duration::ZERO, |s| s.elapsed())).as_secs_f64();
        let steps = cx.global_step - self.last_step;
        if seconds > 0.0 {
            cx.put_timing(self.tag(), steps as f64 * self.samples_per_step.unwrap_or(1.0) / seconds);
        }
        (self.before, self.last_step) = (Duration::ZERO, cx.global_step);
        // Within an epoch the clock goes on from here.
        self.since = self.since.map(|_| Instant::now());
        Ok(())
    }

    fn makes(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.tag(), When::Epoch)]
    }
}
