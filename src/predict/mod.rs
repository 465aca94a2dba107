//! Predictors: a model built in inference mode, and run; or written to a file, and run without its code,
//! alone or as a part of another model.

mod async_predictor;
mod export;
mod exported_model;
mod module;
mod predictor;
mod written;

pub use async_predictor::{AsyncPredictor, Pending};
pub use exported_model::ExportedModel;
pub use module::Module;
pub use predictor::{OfflinePredictor, PredictConfig, Predictor};
