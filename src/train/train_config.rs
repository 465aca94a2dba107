//! The configuration of a run that trains a model on data.

use super::RunConfig;
use super::run_config::run_settings;
use crate::input::InputSource;
use crate::tower::ModelDesc;
use std::rc::Rc;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow};

/// The configuration of a run that trains a model with one cost: the model, its data, and the
/// settings of any run ([`RunConfig`]). Only the trainer is missing; see
/// [`launch_train_with_config`](super::launch_train_with_config).
///
/// A configuration always has a model and data:
///
/// ```compile_fail,E0599
/// # use tensorpack::prelude::*;
/// TrainConfig::default();
/// ```
///
/// A trainer that already has a graph takes a `RunConfig`. It would ignore a model:
///
/// ```compile_fail,E0308
/// # use tensorpack::prelude::*;
/// # use tensorpack::train::Trainer;
/// # use tensorpack::train::Iteration;
/// fn train(trainer: Trainer, config: TrainConfig, step: impl Iteration) {
///     let _ = trainer.train(config, step);
/// }
/// ```
#[doc(alias = "AutoResumeTrainConfig")]
pub struct TrainConfig {
    pub(super) model: Rc<dyn ModelDesc>,
    pub(super) data: Data,
    pub(super) run: RunConfig,
}

/// Where a model gets its training data.
pub(super) enum Data {
    /// From a dataflow, through the default input source of the trainer.
    Dataflow(Flow),
    /// From an input source.
    Input(Box<dyn InputSource>),
}

impl TrainConfig {
    /// Trains `model` on `dataflow`.
    pub fn new(model: impl ModelDesc + 'static, dataflow: impl DataFlow + 'static) -> TrainConfig {
        TrainConfig::from_data(model, Data::Dataflow(Arc::new(dataflow)))
    }

    /// Trains `model` on an input source.
    #[doc(alias = "of")]
    #[doc(alias = "data")]
    pub fn with_input(model: impl ModelDesc + 'static, input: impl InputSource + 'static) -> TrainConfig {
        TrainConfig::from_data(model, Data::Input(Box::new(input)))
    }

    fn from_data(model: impl ModelDesc + 'static, data: Data) -> TrainConfig {
        TrainConfig { model: Rc::new(model), data, run: RunConfig::new() }
    }
}

run_settings!(TrainConfig.run);

impl AsMut<RunConfig> for TrainConfig {
    fn as_mut(&mut self) -> &mut RunConfig {
        &mut self.run
    }
}
