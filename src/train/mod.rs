//! Trainers: run the training loop and its callbacks.

mod async_multi;
mod async_towers;
mod average_gradients;
mod batch_summary;
mod cost_trend;
mod data_parallel;
mod defaults;
mod distributed;
mod largest_batch;
mod launch;
mod machine_roof;
mod main_loop;
mod manifest;
mod noop;
mod queue_input;
mod ranks;
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only `TrainArgs` starts one"))]
mod rerun;
mod resume;
mod run_config;
#[cfg_attr(not(unix), path = "signals_without_unix.rs")]
mod signals;
mod simple;
mod single_cost;
#[cfg(unix)]
mod status_report;
mod step;
mod step_plan;
mod steps_per_launch;
mod sync_multi;
mod tower_trainer;
#[cfg(feature = "cli")]
mod train_args;
mod train_config;
mod trainer;

pub use async_multi::AsyncMultiGpuTrainer;
pub use average_gradients::average_gradients;
pub use defaults::{default_callbacks, default_monitors};
pub use distributed::{DistributedTrainerParameterServer, DistributedTrainerReplicated};
pub use largest_batch::largest_batch;
pub use launch::launch_train_with_config;
pub use main_loop::Ended;
pub use noop::NoOpTrainer;
pub use queue_input::QueueInputTrainer;
pub use run_config::RunConfig;
pub use simple::SimpleTrainer;
pub use single_cost::{Configured, Setup, SingleCostTrainer, Strategy};
pub use step::{Iteration, NanPolicy, RunTrainOp, StepCx};
pub use steps_per_launch::StepsPerLaunch;
pub use sync_multi::{
    SyncMultiGpuTrainer, SyncMultiGpuTrainerParameterServer, SyncMultiGpuTrainerReplicated,
};
pub use tower_trainer::TowerTrainer;
#[cfg(feature = "cli")]
pub use train_args::TrainArgs;
pub use train_config::TrainConfig;
pub use trainer::{Trained, Trainer};
