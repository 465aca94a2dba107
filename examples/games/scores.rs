//! The scores of the latest episodes.

use std::collections::VecDeque;

/// The number of episodes whose scores are averaged.
const RECENT: usize = 100;

/// The scores of the latest 100 training episodes.
#[derive(Default)]
pub(crate) struct RecentScores(VecDeque<f64>);

impl RecentScores {
    /// Adds the score of an episode that has ended.
    pub(crate) fn push(&mut self, score: f64) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(score);
    }

    /// Returns the mean, to be monitored as `train_score`; nothing before the first episode has ended.
    pub(crate) fn report(&self) -> Vec<(String, f64)> {
        match self.0.is_empty() {
            true => Vec::new(),
            false => vec![("train_score".into(), self.0.iter().sum::<f64>() / self.0.len() as f64)],
        }
    }

    /// Returns the scores, for a checkpoint.
    pub(crate) fn to_vec(&self) -> Vec<f64> {
        self.0.iter().copied().collect()
    }

    /// Restores the scores of a checkpoint.
    pub(crate) fn restore(&mut self, scores: &[f64]) {
        self.0 = scores.iter().copied().collect();
    }
}
