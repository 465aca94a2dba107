//! Predictors: a model built in inference mode, and run.

mod predictor;

pub use predictor::{OfflinePredictor, PredictConfig};
