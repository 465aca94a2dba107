//! The default callbacks and monitors.

use crate::callback::{
    Callback, HyperParamSummary, MergeAllSummaries, MovingAverageSummary, Profiler, ProgressBar,
    RunUpdateOps, StepCurves,
};
use crate::monitor::{EventWriter, JsonWriter, Monitor, ScalarPrinter};
use std::path::Path;

/// Returns the default callbacks: moving averages, curves over steps, a progress bar, summaries,
/// update operations, hyper-parameters, and a profiler that records a timeline on `SIGUSR1`.
#[doc(alias = "DEFAULT_CALLBACKS")]
pub fn default_callbacks() -> Vec<Box<dyn Callback>> {
    vec![
        Box::new(MovingAverageSummary::default()),
        Box::new(StepCurves::default()),
        Box::new(ProgressBar::default()),
        Box::new(MergeAllSummaries::default()),
        Box::new(RunUpdateOps::default()),
        Box::new(HyperParamSummary::new()),
        Box::new(Profiler::new()),
    ]
}

/// Returns the default monitors: the log and, if the run has a log directory, TensorBoard event
/// files, `stats.jsonl`, `timing.jsonl` and `steps.jsonl`.
#[doc(alias = "DEFAULT_MONITORS")]
pub fn default_monitors(logdir: Option<&Path>) -> Vec<Box<dyn Monitor>> {
    let mut monitors: Vec<Box<dyn Monitor>> = Vec::new();
    if logdir.is_some() {
        monitors.push(Box::new(EventWriter::new()));
        monitors.push(Box::new(JsonWriter::new()));
    }
    monitors.push(Box::new(ScalarPrinter::new()));
    monitors
}
