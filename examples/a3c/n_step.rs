//! Transitions over several steps.

use super::games::Transition;

/// The discount of later rewards.
pub(crate) const DISCOUNT: f32 = 0.99;

/// A transition over one or more steps of a game, to the end of the rollout or of the episode.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NStep {
    pub(crate) observation: Vec<f32>,
    pub(crate) action: usize,
    /// The discounted sum of the rewards.
    pub(crate) rewards: f32,
    /// What the player sees at the end.
    pub(crate) last_observation: Vec<f32>,
    /// The discount of the value at the end; 0 if the game ended.
    pub(crate) last_discount: f32,
}

/// Returns a transition from each step of a game to the end of the steps or of its episode. An episode
/// that was cut off at the time limit has a future.
pub(crate) fn n_step(steps: Vec<Transition>) -> Vec<NStep> {
    let mut found: Vec<NStep> = Vec::with_capacity(steps.len());
    for Transition { observation, action, reward, next, terminal, score } in steps.into_iter().rev() {
        let later = found.last().filter(|_| score.is_none());
        found.push(match later {
            Some(later) => NStep {
                observation,
                action,
                rewards: reward + DISCOUNT * later.rewards,
                last_observation: later.last_observation.clone(),
                last_discount: DISCOUNT * later.last_discount,
            },
            None => NStep {
                observation,
                action,
                rewards: reward,
                last_observation: next,
                last_discount: if terminal { 0.0 } else { DISCOUNT },
            },
        });
    }
    found.reverse();
    found
}
