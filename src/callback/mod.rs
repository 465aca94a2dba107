//! What is done beside the iterations: saving, inference, schedules, statistics, progress. One callback a file.

#[expect(clippy::module_inception, reason = "the trait stands in a file of its own name")]
mod callback;
mod context;
mod group;
mod best_saver;
mod inference_runner;
mod inferencer;
mod merge_all_summaries;
mod model_saver;
mod moving_average_summary;
mod progress_bar;
mod run_update_ops;

pub use best_saver::{MaxSaver, MinSaver};
pub use callback::{Callback, Statistic, When};
pub(crate) use context::Run;
pub use context::{Fetched, GraphCx, HookCx, Progress, TrainCx};
pub(crate) use group::Callbacks;
pub use inference_runner::InferenceRunner;
pub use inferencer::{BinaryClassificationStats, ClassificationError, Inferencer, ScalarStats};
pub use merge_all_summaries::MergeAllSummaries;
pub use model_saver::ModelSaver;
pub use moving_average_summary::MovingAverageSummary;
pub use progress_bar::ProgressBar;
pub use run_update_ops::RunUpdateOps;
