//! Predictors: a model built in inference mode, and run; or written to a file, and run without its code.

mod export;
mod exported_model;
mod predictor;
mod written;

pub use exported_model::ExportedModel;
pub use predictor::{OfflinePredictor, PredictConfig};
