//! What the player sees in several games, and the actions that a model prefers there.

use super::{Episodes, Rules};
use tensorpack::prelude::*;

/// Returns what the player sees in these games, as a batch.
pub(crate) fn batch_of_observations<'a>(
    rules: Rules,
    games: impl Iterator<Item = &'a Episodes>,
) -> Result<HostTensor> {
    let pixels: Vec<f32> = games.flat_map(|game| game.observation()).collect();
    let mut sizes = vec![pixels.len() / rules.observation_len()];
    sizes.extend(rules.observation_sizes());
    HostTensor::new(sizes, pixels)
}

/// Returns the action with the highest value of every row; the first of several.
pub(crate) fn best_actions(values: &HostTensor) -> Result<Vec<usize>> {
    let actions = values.sizes()[1];
    let best = |row: &[f32]| (1..actions).fold(0, |best, a| if row[a] > row[best] { a } else { best });
    Ok(values.as_slice::<f32>()?.chunks(actions).map(best).collect())
}
