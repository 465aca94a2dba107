//! The network and the losses of advantage actor-critic (Mnih et al., 2016).

use super::games::{Rules, features, observation_spec};
use tensorpack::prelude::*;

/// The weight of the entropy of the policy. It keeps the player from always choosing the same too soon.
const ENTROPY: f64 = 0.01;
/// The weight of the squared error of the values.
const VALUE: f64 = 0.5;

/// Returns the inputs of the model: a batch of transitions over one or more steps of a game.
pub(crate) fn signature(rules: Rules) -> Vec<TensorSpec> {
    vec![
        observation_spec(rules, "observation"),
        TensorSpec::i32("action", [None]),
        TensorSpec::f32("rewards", [None]),
        observation_spec(rules, "last_observation"),
        TensorSpec::f32("last_discount", [None]),
    ]
}

/// Builds the network: the logits of all actions, and the value of the state.
fn network(t: &TowerContext, rules: Rules, x: &Tensor) -> (Tensor, Tensor) {
    let x = features(t, rules, x);
    let logits = Linear::new(rules.actions()).init(Init::Normal(0.0, 0.01)).apply(t, "policy", &x);
    (logits, Linear::new(1).apply(t, "value", &x).squeeze(1))
}

/// The tower function. Names the logits of all actions `logits`, and returns the cost.
pub(crate) fn build(t: &TowerContext, rules: Rules, inputs: &[Tensor]) -> Vec<Tensor> {
    let [observation, action, rewards, last_observation, last_discount] = inputs else { return Vec::new() };
    let ((logits, value), (_, last_value)) = t.auto_reuse(|t| {
        let look = |x: &Tensor| t.scope("player", |t| network(t, rules, x));
        (look(observation), look(last_observation))
    });
    let logits = logits.named("logits");

    // The rewards that came, and what the last state is worth.
    let goal = (rewards + last_discount * last_value).stop_gradient();
    let advantage = (&goal - &value).stop_gradient();
    // The cross entropy is the negative logarithm of the probability of the action.
    let policy_loss = (logits.sparse_softmax_cross_entropy(action) * advantage).mean().named("policy_loss");
    let value_loss = (value.squared_error(&goal).mean() * VALUE).named("value_loss");
    let entropy = -(logits.softmax() * logits.log_softmax()).sum_axes(&[1]).mean();
    let entropy = entropy.named("entropy");
    let cost = (&policy_loss + &value_loss - &entropy * ENTROPY).named("cost");
    let mean_value = value.mean().named("mean_value");
    t.moving_summary(&[&cost, &policy_loss, &value_loss, &entropy, &mean_value]);
    vec![cost]
}
