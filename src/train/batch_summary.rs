//! The log line of the first batch: how much data a step and an epoch take.

use tensorpack_tensor::HostTensor;

/// How towers and epochs divide the data, for the log line of the first batch.
#[doc(alias = "Opening")]
pub(super) struct BatchSummary {
    /// Number of towers that share one read of the input.
    pub(super) towers: usize,
    /// Number of such groups that run independently: 1, or the number of asynchronous towers.
    pub(super) groups: usize,
    pub(super) steps_per_epoch: u64,
    /// Batches in one pass over the data, if known.
    pub(super) pass: Option<u64>,
}

impl BatchSummary {
    /// `batch 128 = 1 tower x 128; an epoch is 468 steps, 468 batches, 1.00 passes over the data`.
    pub(super) fn text(&self, batch: &[(String, HostTensor)]) -> String {
        let BatchSummary { towers, groups, steps_per_epoch: steps, pass } = *self;
        let inputs = (batch.len() / towers.max(1)).max(1);
        let rows = batch.iter().step_by(inputs).map(|(_, value)| value.sizes().first().copied().unwrap_or(1));
        let rows: Vec<usize> = rows.collect();
        let each = rows.first().copied().unwrap_or(0);
        let total = rows.iter().sum::<usize>() * groups;
        let towers = towers * groups;
        let batches = steps * towers as u64;
        let passes = pass
            .filter(|n| *n > 0)
            .map_or_else(String::new, |n| format!(", {:.2} passes over the data", batches as f64 / n as f64));
        let s = if towers == 1 { "" } else { "s" };
        format!(
            "batch {total} = {towers} tower{s} x {each}; an epoch is {steps} steps, {batches} batches{passes}"
        )
    }
}
