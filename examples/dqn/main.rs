//! Double DQN on CartPole, or on Catch, a game of pixels. Both games are in `examples/games`.
//!
//! `cargo run --release --example dqn` plays CartPole, and `-- --game catch` plays Catch. Training
//! stops when the game is solved: when 100 episodes without random actions have a mean score of at
//! least 195 (CartPole) or 0.95 (Catch). With `--assert` it fails if that does not happen within 20
//! (10) epochs of 1,000 steps. It can be interrupted at any time and resumes when started again.

mod experience;
#[path = "../games/mod.rs"]
mod games;
mod model;
mod replay_buffer;
mod trainer;

use clap::Parser;
use games::{MEAN_SCORE, Rules};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;
use trainer::Settings;

/// Learns to play CartPole or Catch with double DQN.
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
    let epochs = args.max_epoch.unwrap_or(match rules {
        Rules::CartPole => 20,
        Rules::Catch => 10,
    });
    let steps_per_epoch = args.steps_per_epoch.unwrap_or(1000);
    let settings = Settings {
        rules,
        games: 8,
        capacity: 100_000,
        warm_up: 1_000,
        batch: 64,
        learning_rate: 1e-3,
        steps: epochs * steps_per_epoch,
        exploration_steps: epochs * steps_per_epoch / 4,
        epsilon: 0.05,
        target_period: 200,
        evaluation: 100,
        solved_at: rules.solved_at(),
        seed: args.seed.unwrap_or(0),
    };
    let config = RunConfig::new()
        .logdir(format!("train_log/dqn-{}", rules.name()))
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
