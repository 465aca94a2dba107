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

use games::{EVALUATION, Run};
use tensorpack::prelude::*;
use trainer::Settings;

fn main() -> Result<()> {
    games::run(
        "a3c",
        |_| (40, 100),
        |Run { rules, steps, seed, config }| {
            let settings = Settings {
                rules,
                games: 16,
                rollout: 8,
                learning_rate: 2e-3,
                steps,
                evaluation: EVALUATION,
                solved_at: rules.solved_at(),
                seed,
            };
            trainer::train(settings, config)
        },
    )
}
