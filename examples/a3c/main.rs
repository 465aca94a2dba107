//! Advantage actor-critic on CartPole, or on Catch, a game of pixels: A3C (Mnih et al., 2016) in its
//! synchronous, batched form, which is also called A2C. The games are in `examples/games`.
//!
//! `cargo run --release --example a3c` plays CartPole, and `-- --game catch` plays Catch. Training
//! stops when the game is solved: when 100 episodes in which the player takes the likeliest actions
//! have a mean score of at least 195 (CartPole) or 0.95 (Catch). With `--assert` it fails if that does
//! not happen within 40 epochs of 100 steps. It can be interrupted at any time and resumes when
//! started again.

#[path = "../games/mod.rs"]
mod games;
mod model;
mod n_step;
mod rollout;
mod trainer;

use clap::Parser;
use games::{MEAN_SCORE, Rules};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;
use trainer::Settings;

/// Learns to play CartPole or Catch with advantage actor-critic.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The game.
    #[arg(long, value_name = "NAME", default_value = "cart-pole")]
    game: Rules,
}

fn main() -> Result<()> {
    let args: Args =
        tensorpack::command_line::parse_without(&["--trainer", "--precision", "--fake", "--full"])?;
    let (rules, args) = (args.game, args.train);
    let epochs = args.max_epoch.unwrap_or(40);
    let steps_per_epoch = args.steps_per_epoch.unwrap_or(100);
    let settings = Settings {
        rules,
        games: 16,
        rollout: 8,
        learning_rate: 2e-3,
        steps: epochs * steps_per_epoch,
        evaluation: 100,
        solved_at: rules.solved_at(),
        seed: args.seed.unwrap_or(0),
    };
    let config = RunConfig::new()
        .logdir(format!("train_log/a3c-{}", rules.name()))
        .max_epoch(epochs)
        .steps_per_epoch(steps_per_epoch);
    let trained = trainer::train(settings, args.apply(config)?)?;

    let score = trained.monitors.latest(MEAN_SCORE);
    let score = score.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("mean score of {} episodes: {score:.2}", settings.evaluation);
    if args.assert && score < rules.solved_at() {
        return Err(Error::argument(format!("the mean score is below {}", rules.solved_at())));
    }
    Ok(())
}
