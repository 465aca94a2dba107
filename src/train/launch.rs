//! Trains a model from a configuration.

use super::train_config::Data;
use super::{RunConfig, SingleCostTrainer, TowerTrainer, TrainConfig, Trained};
use crate::logger;
use tensorpack_tensor::Result;

/// Trains the model of a configuration on the devices of the trainer.
pub fn launch_train_with_config(
    config: TrainConfig,
    trainer: impl Into<SingleCostTrainer>,
) -> Result<Trained> {
    let (trainer, run) = set_up(config, trainer)?;
    trainer.train_with_defaults(run)
}

/// Builds the graph of a configuration. Returns the trainer, and the settings of the run.
pub(super) fn set_up(
    config: TrainConfig,
    trainer: impl Into<SingleCostTrainer>,
) -> Result<(TowerTrainer, RunConfig)> {
    let TrainConfig { model, data, run } = config;
    run.check()?;
    logger::init();
    logger::set_quiet(run.quiet);
    let trainer = trainer.into().precision(run.precision.unwrap_or_default());
    let trainer = trainer.loss_scale(run.loss_scale.unwrap_or_default());
    let input = match data {
        Data::Input(input) => input,
        Data::Dataflow(dataflow) => trainer.strategy().default_input(dataflow),
    };
    let builder = model.clone();
    let get_cost = move |t: &_, inputs: &[_]| builder.build_graph(t, inputs);
    let trainer = trainer.setup_graph(model.inputs(), input, get_cost, |t| model.optimizer(t))?;
    Ok((trainer, run))
}
