//! The networks and the loss of double DQN (van Hasselt, Guez and Silver, 2016).

use super::games::{Rules, features, observation_spec};
use tensorpack::prelude::*;

/// The discount of later rewards.
const DISCOUNT: f64 = 0.99;

/// Returns the inputs of the model, a batch of transitions.
pub(crate) fn signature(rules: Rules) -> Vec<TensorSpec> {
    vec![
        observation_spec(rules, "observation"),
        TensorSpec::i32("action", [None]),
        TensorSpec::f32("reward", [None]),
        observation_spec(rules, "next_observation"),
        TensorSpec::f32("terminal", [None]),
    ]
}

/// Builds a network that estimates the value of every action.
fn network(t: &TowerContext, rules: Rules, x: &Tensor) -> Tensor {
    let x = features(t, rules, x);
    Linear::new(rules.actions()).apply(t, "values", &x)
}

/// The tower function. Names the values of all actions `q_values`, and returns the cost.
///
/// The online network chooses the best next action, and the target network, an older copy of it,
/// tells what that action is worth. One network for both would choose what it overestimates.
pub(crate) fn build(t: &TowerContext, rules: Rules, inputs: &[Tensor]) -> Vec<Tensor> {
    let [observation, action, reward, next, terminal] = inputs else { return Vec::new() };
    let (q, q_next) = t.auto_reuse(|t| {
        let online = |x: &Tensor| t.scope("online", |t| network(t, rules, x));
        (online(observation).named("q_values"), online(next))
    });
    let target = t.freeze_variables(|t| t.scope("target", |t| network(t, rules, next)));

    let of_action = |values: &Tensor, action: &Tensor| {
        (values * action.one_hot(rules.actions(), DType::F32)).sum_axes(&[1])
    };
    let value_next = of_action(&target, &q_next.argmax(1));
    let goal = (reward + (1.0 - terminal) * value_next * DISCOUNT).stop_gradient();
    let cost = of_action(&q, action).huber_loss(&goal, 1.0).mean().named("cost");
    let value = q.max_axes(&[1]).mean().named("mean_value");
    t.moving_summary(&[&cost, &value]);
    vec![cost]
}
