//! Measures training throughput.

use super::{Callback, Statistic, TrainCx, When};
use std::time::{Duration, Instant};
use tensorpack_tensor::Result;

/// Reports the steps (or samples) per second since the last trigger, as `Throughput (steps/sec)` or
/// `Throughput (samples/sec)`. Excludes the time between epochs, in which callbacks run.
#[derive(Clone, Debug, Default)]
pub struct ThroughputTracker {
    samples_per_step: Option<f64>,
    last_step: u64,
    /// Time of finished epochs since the last trigger.
    elapsed: Duration,
    /// The start of the current epoch, or the last trigger in it.
    since: Option<Instant>,
}

impl ThroughputTracker {
    /// Counts steps.
    pub fn new() -> ThroughputTracker {
        ThroughputTracker::default()
    }

    /// Counts samples. `per_step` is the number of samples per step over all towers.
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
    fn chief_only(&self) -> bool {
        true
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.last_step = cx.global_step;
        Ok(())
    }

    fn before_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.since = Some(Instant::now());
        Ok(())
    }

    fn after_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.elapsed += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let seconds = (self.elapsed + self.since.map_or(Duration::ZERO, |s| s.elapsed())).as_secs_f64();
        let steps = cx.global_step - self.last_step;
        if seconds > 0.0 {
            cx.put_timing(self.tag(), steps as f64 * self.samples_per_step.unwrap_or(1.0) / seconds);
        }
        (self.elapsed, self.last_step) = (Duration::ZERO, cx.global_step);
        // Within an epoch, the next measurement starts here.
        self.since = self.since.map(|_| Instant::now());
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.tag(), When::Epoch)]
    }
}
