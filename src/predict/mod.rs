//! Predictors: a model built in inference mode, and run; or written to a file, and run without its code.

mod async_predictor;
mod export;
mod exported_model;
mod predictor;
mod written;

pub use async_predictor::{AsyncPredictor, Pending};
pub use exported_model::ExportedModel;
pub use predictor::{OfflinePredictor, PredictConfig, Predictor};
