//! Trains a model from a configuration.

use super::{SingleCostTrainer, TrainConfig, Trained};
use crate::logger;
use std::rc::Rc;
use tensorpack_tensor::{Error, Result};

/// Trains the model of a configuration on the devices of the trainer.
pub fn launch_train_with_config(
    mut config: TrainConfig,
    trainer: impl Into<SingleCostTrainer>,
) -> Result<Trained> {
    config.check()?;
    logger::init();
    let mut trainer = trainer.into();
    let model = config.model.take().ok_or_else(|| {
        Error::argument("the configuration has no model").note("set one with TrainConfig::new(model, data)")
    })?;
    let input = match (config.data.take(), config.dataflow.take()) {
        (Some(input), _) => input,
        (None, Some(dataflow)) => trainer.strategy().default_input(dataflow),
        (None, None) => {
            return Err(Error::argument("the configuration has no training data").note(
                "set a dataflow with TrainConfig::new(model, data), or an input source with data(..)",
            ));
        }
    };
    let model: Rc<dyn crate::tower::ModelDesc> = Rc::from(model);
    let builder = model.clone();
    trainer.setup_graph(
        model.inputs(),
        input,
        move |t, inputs| builder.build_graph(t, inputs),
        |t| model.optimizer(t),
    )?;
    trainer.train_with_defaults(config)
}
