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

use games::{EVALUATION, Rules, Run};
use tensorpack::prelude::*;
use trainer::Settings;

fn main() -> Result<()> {
    let length = |rules| match rules {
        Rules::CartPole => (20, 1000),
        Rules::Catch => (10, 1000),
    };
    games::run("dqn", length, |Run { rules, steps, seed, config }| {
        let settings = Settings {
            rules,
            games: 8,
            capacity: 100_000,
            warm_up: 1_000,
            batch: 64,
            learning_rate: 1e-3,
            steps,
            exploration_steps: steps / 4,
            epsilon: 0.05,
            target_period: 200,
            evaluation: EVALUATION,
            solved_at: rules.solved_at(),
            seed,
        };
        trainer::train(settings, config)
    })
}
