//! What every run has unless it says otherwise.

use crate::callback::{Callback, MergeAllSummaries, MovingAverageSummary, ProgressBar, RunUpdateOps};
use crate::monitor::{JsonWriter, Monitor};

/// Moving averages, a progress bar, summaries, update operations.
#[doc(alias = "DEFAULT_CALLBACKS")]
pub fn default_callbacks() -> Vec<Box<dyn Callback>> {
    vec![
        Box::new(MovingAverageSummary::default()),
        Box::new(ProgressBar::default()),
        Box::new(MergeAllSummaries::default()),
        Box::new(RunUpdateOps::default()),
    ]
}

/// `stats.jsonl` with `timing.jsonl`, if the run has a directory.
#[doc(alias = "DEFAULT_MONITORS")]
pub fn default_monitors(has_logdir: bool) -> Vec<Box<dyn Monitor>> {
    if has_logdir { vec![Box::new(JsonWriter::default())] } else { Vec::new() }
}
