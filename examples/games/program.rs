//! What a program does that learns to play a game: its options, its run, and the score at the end.

use super::{MEAN_SCORE, Rules};
use clap::Parser;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The episodes of an evaluation.
pub(crate) const EVALUATION: u64 = 100;

/// Learns to play CartPole or Catch.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The game.
    #[arg(long, value_name = "NAME", default_value = "cart-pole")]
    game: Rules,
}

/// The run that the options ask for.
pub(crate) struct Run {
    pub(crate) rules: Rules,
    /// Training steps in the whole run.
    pub(crate) steps: u64,
    pub(crate) seed: u64,
    pub(crate) config: RunConfig,
}

/// Returns the run that these options ask for. `epochs` and `steps_per_epoch` are the defaults.
pub(crate) fn configure(
    name: &str,
    rules: Rules,
    args: &TrainArgs,
    (epochs, steps_per_epoch): (u64, u64),
) -> Result<Run> {
    // There is one tower: several devices are an error.
    args.trainer()?;
    let epochs = args.max_epoch.unwrap_or(epochs);
    let steps_per_epoch = args.steps_per_epoch.unwrap_or(steps_per_epoch);
    let config = RunConfig::new()
        .logdir(format!("train_log/{name}-{}", rules.name()))
        .max_epoch(epochs)
        .steps_per_epoch(steps_per_epoch);
    // Schedules need a step, even if `--max-epoch 0` trains none.
    let steps = epochs.saturating_mul(steps_per_epoch).max(1);
    let seed = args.seed.unwrap_or(0);
    Ok(Run { rules, steps, seed, config: args.apply(config)? })
}

/// Parses the command line, trains, and prints the mean score of the last evaluation. `length` returns
/// the default number of epochs and of steps per epoch.
pub(crate) fn run(
    name: &str,
    length: impl Fn(Rules) -> (u64, u64),
    train: impl FnOnce(Run) -> Result<Trained>,
) -> Result<()> {
    // The last three need a trainer with one cost.
    let without = ["--trainer", "--precision", "--fake", "--full", "--find-batch", "--overfit", "--find-lr"];
    let args: Args = tensorpack::command_line::parse_without(&without)?;
    let (rules, args) = (args.game, args.train);
    let trained = train(configure(name, rules, &args, length(rules))?)?;

    let score = trained.monitors.latest(MEAN_SCORE);
    let score = score.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("mean score of {EVALUATION} episodes: {score:.2}");
    if args.assert && score < rules.solved_at() {
        return Err(Error::argument(format!("the mean score is below {}", rules.solved_at())));
    }
    Ok(())
}
