//! Games for reinforcement learning, written here, with threads that play them, an evaluation and a command line.
//! Shared by the examples `dqn` and `a3c`. See `docs/reinforcement.md`.

#![allow(dead_code, unused_imports, reason = "each example uses a part of this")]

mod cart_pole;
mod catch;
mod evaluation;
mod game;
mod network;
mod observations;
mod program;
mod scores;
mod simulators;
mod states;

pub(crate) use evaluation::{Evaluation, MEAN_SCORE};
pub(crate) use game::{Episodes, Rules, Transition};
pub(crate) use network::{features, observation_spec};
pub(crate) use observations::{batch_of_observations, best_actions};
pub(crate) use program::{EVALUATION, Run, configure, run};
pub(crate) use scores::RecentScores;
pub(crate) use simulators::Simulators;
pub(crate) use states::{find, restore_games, states_of_games};
