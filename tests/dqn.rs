//! Tests of the example `dqn`, compiled from the same files.

#[path = "../examples/dqn/experience.rs"]
mod experience;
#[path = "../examples/dqn/model.rs"]
mod model;
#[path = "../examples/dqn/replay_buffer.rs"]
mod replay_buffer;
#[path = "../examples/dqn/trainer.rs"]
mod trainer;

use super::onnx_examples;
use crate::games::{self, Episodes, Rules, Simulators, Transition};
use crate::resumed_games;
use replay_buffer::ReplayBuffer;
use std::path::Path;
use tensorpack::io::Checkpoint;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;
use tensorpack::train::TrainArgs;
use trainer::Settings;

/// The values of actions, which are what plays.
#[test]
fn the_networks_survive_a_round_trip_through_onnx() {
    let dir = tempfile::tempdir().unwrap();
    for (name, rules) in [("cart_pole", Rules::CartPole), ("catch", Rules::Catch)] {
        let tower =
            TowerFunc::new(model::signature(rules), move |t, inputs| model::build(t, rules, inputs)).unwrap();
        let config = PredictConfig::from_tower(tower, ["q_values"]).inputs(["observation"]);
        let sizes = [&[3], rules.observation_sizes()].concat();
        onnx_examples::check(dir.path(), name, config, &[onnx_examples::floats(&sizes)]);
    }
    onnx_examples::run_in_onnxruntime(dir.path());
}

#[test]
fn cart_pole_moves_as_in_gym() {
    let mut game = Rules::CartPole.new_game();
    game.set_state(&[0.01, -0.02, 0.03, 0.04]);
    for action in [1, 0, 1, 1, 0] {
        assert_eq!(game.step(action), (1.0, false));
    }
    // Computed in Python from Gym's equations.
    let expected = [0.023525558663475683, 0.17316263692575581, 0.012433087822150324, -0.20950152868114708];
    for (found, expected) in game.state().iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{:?}", game.state());
    }
}

#[test]
fn cart_pole_ends_when_the_pole_falls_and_is_cut_off_after_200_steps() {
    // Always pushing to one side tips the pole over.
    let mut falling = Episodes::new(Rules::CartPole, CounterRng::new(1, "game"));
    let steps: Vec<Transition> = (0..20).map(|_| falling.step(1)).collect();
    let end = steps.iter().position(|t| t.terminal).expect("the pole falls");
    assert_eq!(steps[end].score, Some((end + 1) as f64));
    // Pushing towards the side to which the pole falls balances it for 200 steps.
    let mut balanced = Episodes::new(Rules::CartPole, CounterRng::new(1, "game"));
    let last = (0..200).map(|_| {
        let seen = balanced.observation();
        balanced.step(usize::from(seen[2] + seen[3] + 0.1 * seen[1] + 0.05 * seen[0] > 0.0))
    });
    let last = last.last().unwrap();
    assert_eq!((last.score, last.terminal), (Some(200.0), false));
}

#[test]
fn a_paddle_that_follows_the_ball_catches_it() {
    for column in 0..10 {
        let [follow, stand] = [true, false].map(|follows| {
            let mut game = Rules::Catch.new_game();
            game.reset(&|_| (f64::from(column) + 0.5) / 10.0);
            loop {
                let state = game.state();
                let direction =
                    if follows { (state[1] - state[2]).partial_cmp(&0.0).unwrap() as i32 } else { 0 };
                if let (reward, true) = game.step((direction + 1) as usize) {
                    return reward;
                }
            }
        });
        assert_eq!((follow, stand), (1.0, if column == 5 { 1.0 } else { -1.0 }), "{column}");
    }
}

#[test]
fn the_replay_buffer_keeps_the_latest_transitions() {
    let mut replay = ReplayBuffer::new(4, &[1]);
    for i in 0..7 {
        let (observation, next) = (vec![i as f32], vec![i as f32 + 0.5]);
        replay.push(&Transition { observation, action: i, reward: 1.0, next, terminal: i == 5, score: None });
    }
    let batch = replay.sample(200, &CounterRng::new(1, "replay"), 0).unwrap();
    let mut actions = batch[1].as_slice::<i32>().unwrap().to_vec();
    for (i, action) in actions.iter().enumerate() {
        let row = [0, 3, 4].map(|column: usize| batch[column].as_slice::<f32>().unwrap()[i]);
        assert_eq!(row, [*action as f32, *action as f32 + 0.5, f32::from(u8::from(*action == 5))]);
    }
    actions.sort();
    actions.dedup();
    assert_eq!(actions, [3, 4, 5, 6]);
    let empty = ReplayBuffer::new(4, &[1]).sample(1, &CounterRng::new(1, "replay"), 0);
    assert_eq!(empty.unwrap_err().kind(), tensorpack::ErrorKind::Argument);
}

#[test]
fn the_number_of_simulator_threads_changes_nothing() {
    let play = |threads| {
        let game = |i| Episodes::new(Rules::CartPole, CounterRng::new(i, "game"));
        let mut simulators = Simulators::new((0..5).map(game).collect(), threads).unwrap();
        let step = |simulators: &mut Simulators, i: usize| {
            simulators.play(&[i % 2, 1, 0, i % 3 / 2, 1]).unwrap();
            simulators.collect().unwrap()
        };
        (0..30).flat_map(|i| step(&mut simulators, i)).collect::<Vec<_>>()
    };
    let one = play(1);
    assert_eq!(one.len(), 150);
    assert!(one.iter().any(|t| t.score.is_some()));
    assert_eq!(play(3), one);
    assert_eq!(play(8), one);
}

fn settings(rules: Rules) -> Settings {
    Settings {
        rules,
        games: 4,
        capacity: 150,
        warm_up: 50,
        batch: 8,
        learning_rate: 1e-3,
        steps: 60,
        exploration_steps: 20,
        epsilon: 0.1,
        target_period: 7,
        evaluation: 3,
        solved_at: f64::INFINITY,
        seed: 5,
    }
}

#[test]
fn a_dry_run_draws_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let logdir = dir.path().join("run");
    for rules in [Rules::CartPole, Rules::Catch] {
        let config = RunConfig::new().logdir(&logdir).steps_per_epoch(20).quiet().dry_run();
        let checked = trainer::train(settings(rules), config).unwrap();
        assert_eq!((checked.session.run_index().unwrap(), logdir.exists()), (0, false));
    }
}

#[test]
fn several_devices_are_an_error() {
    let configure = |options: &[&str]| {
        let args = TrainArgs::parse_options(options.iter().copied()).unwrap();
        games::configure("dqn", Rules::Catch, &args, (1, 1))
    };
    let e = configure(&["--devices", "cpu:0,cpu:1"]).err().expect("an error");
    assert_eq!(e.kind(), tensorpack::ErrorKind::Argument, "{e}");
    assert!(e.message().contains("--devices"), "{e}");
    assert_eq!(configure(&["--devices", "cpu:1"]).unwrap().steps, 1);
}

/// Learning rates fall over this length: it is neither zero nor smaller than what was asked for.
#[test]
fn the_length_of_a_run_does_not_overflow() {
    let steps = |options: &str| {
        let args = TrainArgs::parse_options(options.split_whitespace()).unwrap();
        games::configure("dqn", Rules::Catch, &args, (1, 1)).unwrap().steps
    };
    assert_eq!(steps("--max-epoch 3 --steps-per-epoch 5"), 15);
    assert_eq!(steps("--max-epoch 0"), 1);
    assert_eq!(steps("--max-epoch 9223372036854775808 --steps-per-epoch 2"), u64::MAX);
}

/// Trains for this many epochs of a run of three. Returns its last checkpoint.
fn train(rules: Rules, dir: &Path, epochs: u64) -> Checkpoint {
    let config = RunConfig::new().logdir(dir).steps_per_epoch(20).max_epoch(epochs).quiet();
    trainer::train(settings(rules), config).unwrap();
    resumed_games::last_checkpoint(dir)
}

#[test]
fn a_resumed_run_ends_with_the_same_weights_games_and_replay_buffer() {
    for rules in [Rules::CartPole, Rules::Catch] {
        assert_eq!(resumed_games::check(rules, train).input_tensors.len(), 8);
    }
}
