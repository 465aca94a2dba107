//! Estimates the remaining training time.

use super::progress_bar::clock;
use super::{Callback, Statistic, TrainCx, When};
use std::collections::VecDeque;
use std::time::Instant;
use tensorpack_tensor::Result;

/// Estimates the remaining training time after every epoch, from the median duration of the last
/// few epochs. Logs it and reports it as `EstimatedTimeLeft (sec)`.
#[derive(Clone, Debug)]
pub struct EstimatedTimeLeft {
    last_k: usize,
    median: bool,
    seconds: VecDeque<f64>,
    since: Instant,
}

impl Default for EstimatedTimeLeft {
    /// Uses the last five epochs.
    fn default() -> EstimatedTimeLeft {
        EstimatedTimeLeft::last_k_epochs(5)
    }
}

const TAG: &str = "EstimatedTimeLeft (sec)";

impl EstimatedTimeLeft {
    /// Uses the last `k` epochs.
    pub fn last_k_epochs(k: usize) -> EstimatedTimeLeft {
        EstimatedTimeLeft { last_k: k.max(1), median: true, seconds: VecDeque::new(), since: Instant::now() }
    }

    /// Uses the mean duration instead of the median.
    #[must_use]
    pub fn mean(self) -> EstimatedTimeLeft {
        EstimatedTimeLeft { median: false, ..self }
    }

    /// Returns the expected duration of an epoch.
    fn epoch_seconds(&self) -> f64 {
        let n = self.seconds.len();
        if !self.median {
            return self.seconds.iter().sum::<f64>() / n as f64;
        }
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
    }

    /// Records the duration of an epoch and returns the estimate for `epochs` more.
    fn record(&mut self, seconds: f64, epochs: u64) -> f64 {
        if self.seconds.len() == self.last_k {
            self.seconds.pop_front();
        }
        self.seconds.push_back(seconds);
        self.epoch_seconds() * epochs as f64
    }
}

impl Callback for EstimatedTimeLeft {
    fn chief_only(&self) -> bool {
        true
    }

    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.since = Instant::now();
        Ok(())
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.since, now);
        let left = self.record(took.as_secs_f64(), cx.max_epoch.saturating_sub(cx.epoch_num));
        if left > 0.0 {
            log::info!("about {} left", clock(left));
        }
        cx.put_timing(TAG, left);
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        vec![Statistic::new(TAG, When::Epoch)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_epoch_duration_times_epochs_left() {
        let left = |mut e: EstimatedTimeLeft| [9.0, 1.0, 2.0, 6.0].map(|s| e.record(s, 10));
        assert_eq!(left(EstimatedTimeLeft::last_k_epochs(3)), [90.0, 50.0, 20.0, 20.0]);
        assert_eq!(left(EstimatedTimeLeft::last_k_epochs(3).mean()), [90.0, 50.0, 40.0, 30.0]);
    }
}
