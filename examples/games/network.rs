//! Networks that look at a game.

use super::Rules;
use tensorpack::prelude::*;

/// Returns the input signature of a batch of observations.
pub(crate) fn observation_spec(rules: Rules, name: &str) -> TensorSpec {
    let sizes = rules.observation_sizes().iter().map(|&n| Some(n));
    TensorSpec::f32(name, std::iter::once(None).chain(sizes).collect::<Vec<_>>())
}

/// Returns 64 features of each observation.
pub(crate) fn features(t: &TowerContext, rules: Rules, x: &Tensor) -> Tensor {
    let x = match rules {
        Rules::CartPole => Linear::new(64).relu().apply(t, "fc0", x),
        Rules::Catch => {
            let x = Conv2d::new(16, 3).relu().apply(t, "conv0", x);
            Conv2d::new(16, 3).stride(2).relu().apply(t, "conv1", &x)
        }
    };
    Linear::new(64).relu().apply(t, "fc1", &x)
}
