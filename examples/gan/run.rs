//! A whole run: training, with pictures of samples, and the judgement of what was learnt.

use super::{GanTrainer, judge, sample_grid};
use tensorpack::prelude::*;
use tensorpack::train::{TrainArgs, Trained};

/// Trains for as many epochs of as many steps (or as the command line says), with a picture of samples after each, then
/// has the samples judged. `train` says what a step is.
pub(crate) fn run(
    args: &TrainArgs,
    gan: GanTrainer,
    (epochs, steps): (u64, u64),
    train: impl FnOnce(GanTrainer, TrainConfig) -> Result<Trained>,
) -> Result<()> {
    let config = TrainConfig::default()
        .callback(ModelSaver::new())
        .callback(sample_grid())
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    judge(args, &train(gan, args.apply(config)?)?)
}
