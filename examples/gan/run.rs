//! A complete run: training with sample images, then the evaluation.

use super::{Bar, GanTrainer, judge, sample_grid};
use tensorpack::prelude::*;
use tensorpack::train::{TrainArgs, Trained};

/// The options that need a trainer with one cost. A GAN has two, one for each player.
pub(crate) const NEED_ONE_COST: [&str; 3] = ["--find-batch", "--overfit", "--find-lr"];

/// Trains for this many epochs of this many steps (or as given on the command line), and writes an image
/// of samples after each. `train` defines the step.
pub(crate) fn train(
    args: &TrainArgs,
    gan: GanTrainer,
    (epochs, steps): (u64, u64),
    train: impl FnOnce(GanTrainer, RunConfig) -> Result<Trained>,
) -> Result<Trained> {
    let config = RunConfig::new()
        .callback(ModelSaver::new())
        .callback(sample_grid())
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    train(gan, args.apply(config)?)
}

/// [Trains](train), and evaluates the samples.
pub(crate) fn run(
    args: &TrainArgs,
    gan: GanTrainer,
    length: (u64, u64),
    step: impl FnOnce(GanTrainer, RunConfig) -> Result<Trained>,
) -> Result<()> {
    judge(args, &train(args, gan, length, step)?, &Bar::USUAL).map(|_| ())
}
