//! From a configuration to a trained model.

use super::{SingleCostTrainer, TrainConfig, Trained};
use crate::logger;
use std::rc::Rc;
use tensorpack_tensor::{Error, Result};

/// Trains a model as the configuration says, on the devices the trainer says.
pub fn launch_train_with_config(
    mut config: TrainConfig,
    trainer: impl Into<SingleCostTrainer>,
) -> Result<Trained> {
    config.check()?;
    logger::init();
    let mut trainer = trainer.into();
    let model = config.model.take().ok_or_else(|| {
        Error::argument("there is no model to train").note("give one with TrainConfig::new(model, data)")
    })?;
    let input = match (config.data.take(), config.dataflow.take()) {
        (Some(input), _) => input,
        (None, Some(dataflow)) => trainer.strategy().default_input(dataflow),
        (None, None) => {
            return Err(Error::argument("there is nothing to train on").note(
                "give a dataflow with TrainConfig::new(model, data), or an input source with data(..)",
            ));
        }
    };
    let passes = input.size();
    let model: Rc<dyn crate::tower::ModelDesc> = Rc::from(model);
    let builder = model.clone();
    trainer.setup_graph(
        model.inputs(),
        input,
        move |t, inputs| builder.build_graph(t, inputs),
        |t| model.optimizer(t),
    )?;
    say_how_much(&trainer, &config, passes);
    trainer.train_with_defaults(config)
}

/// One line that says how much data a step and an epoch take.
fn say_how_much(trainer: &SingleCostTrainer, config: &TrainConfig, size: Option<u64>) {
    let towers = trainer.strategy().towers() as u64;
    let Some(steps) = config.steps_per_epoch.or(size) else { return };
    let taken = steps * towers;
    let passes =
        size.filter(|n| *n > 0).map(|n| format!(", {:.2} passes over the data", taken as f64 / n as f64));
    let passes = passes.unwrap_or_default();
    log::info!(
        "every step takes {towers} batch(es), one for each tower; an epoch is {steps} steps, {taken} batches{passes}"
    );
}
