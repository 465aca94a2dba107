//! Inference: predictors that run a model in inference mode, export to a file, and exported models
//! that run without their code, alone or as a module of another model.

mod async_predictor;
mod batch_groups;
mod dataset_predictor;
mod export;
mod export_onnx;
mod exported_model;
mod feed_errors;
mod fold;
mod graph_file;
mod int8;
mod module;
mod multi_tower;
mod online_predictor;
mod parallel_towers;
mod predictor;
mod quantize;
mod rewriting;

pub use async_predictor::{AsyncPredictor, Pending};
pub(crate) use batch_groups::BatchGroups;
pub use dataset_predictor::{DatasetPredictor, Predictions};
pub use export_onnx::OnnxOptions;
pub use exported_model::ExportedModel;
pub(crate) use feed_errors::{MISSING_BATCH, wrong_component_count};
pub use module::Module;
pub use multi_tower::MultiTowerOfflinePredictor;
pub use online_predictor::OnlinePredictor;
pub(crate) use parallel_towers::{ParallelTowers, Part};
pub use predictor::{OfflinePredictor, PredictConfig, Predictor};
