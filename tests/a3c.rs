//! Tests of the example `a3c`, compiled from the same files.

#[path = "../examples/a3c/model.rs"]
mod model;
#[path = "../examples/a3c/n_step.rs"]
mod n_step;
#[path = "../examples/a3c/rollout.rs"]
mod rollout;
#[path = "../examples/a3c/trainer.rs"]
mod trainer;

use crate::games::{self, Rules, Transition};
use crate::resumed_games;
use n_step::{DISCOUNT, n_step};
use std::path::Path;
use tensorpack::io::Checkpoint;
use tensorpack::prelude::*;
use trainer::Settings;

/// Step `i` of a game, which sees `i` and then `i + 1` and gets a reward of 1.
fn step(i: usize, terminal: bool, score: Option<f64>) -> Transition {
    Transition {
        observation: vec![i as f32],
        action: i,
        reward: 1.0,
        next: vec![i as f32 + 1.0],
        terminal,
        score,
    }
}

#[test]
fn rewards_are_summed_to_the_end_of_the_rollout_or_of_the_episode() {
    // The game ends in step 1, and an episode is cut off in step 3.
    let steps = vec![
        step(0, false, None),
        step(1, true, Some(2.0)),
        step(2, false, None),
        step(3, false, Some(2.0)),
        step(4, false, None),
        step(5, false, None),
    ];
    let found = n_step(steps);
    let d = DISCOUNT;
    let expected = [
        (1.0 + d, 2.0, 0.0),
        (1.0, 2.0, 0.0),
        (1.0 + d, 4.0, d * d),
        (1.0, 4.0, d),
        (1.0 + d, 6.0, d * d),
        (1.0, 6.0, d),
    ];
    for (i, (n, (rewards, last, last_discount))) in found.iter().zip(expected).enumerate() {
        assert_eq!((n.observation[0], n.action), (i as f32, i));
        assert_eq!(
            (n.rewards, n.last_observation[0], n.last_discount),
            (rewards, last, last_discount),
            "{i}"
        );
    }
    assert_eq!(found.len(), 6);
}

#[test]
fn actions_are_drawn_as_often_as_the_policy_says() {
    // Probabilities 0.2, 0.5 and 0.3.
    let logits = [0.2f32, 0.5, 0.3].map(|p| p.ln() + 7.0);
    let mut counts = [0; 3];
    for i in 0..1000 {
        counts[rollout::draw(&logits, (f64::from(i) + 0.5) / 1000.0)] += 1;
    }
    assert_eq!(counts, [200, 500, 300]);
    assert_eq!(rollout::draw(&[f32::NEG_INFINITY, 0.0], 0.0), 1);
}

/// Trains for this many epochs of a run of three. Returns its last checkpoint.
fn train(rules: Rules, dir: &Path, epochs: u64) -> Checkpoint {
    let settings = Settings {
        rules,
        games: 3,
        rollout: 4,
        learning_rate: 1e-3,
        steps: 45,
        evaluation: 3,
        solved_at: f64::INFINITY,
        seed: 5,
    };
    let config = RunConfig::new().logdir(dir).steps_per_epoch(15).max_epoch(epochs).quiet();
    trainer::train(settings, config).unwrap();
    resumed_games::last_checkpoint(dir)
}

#[test]
fn a_resumed_run_ends_with_the_same_weights_and_games() {
    for rules in [Rules::CartPole, Rules::Catch] {
        let checkpoint = resumed_games::check(rules, train);
        assert_eq!(checkpoint.input_tensors.len(), 2);
        assert_eq!(checkpoint.state["input"], tensorpack::serde_json::json!({"steps": 180}), "{rules:?}");
    }
}
