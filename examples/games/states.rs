//! Games in checkpoints: their states as tensors.

use super::{Episodes, Simulators};
use tensorpack::prelude::*;

/// Returns the tensor `name` of a checkpoint.
pub(crate) fn find<'a>(tensors: &'a [(String, HostTensor)], name: &str) -> Result<&'a HostTensor> {
    let found = tensors.iter().find(|(n, _)| n == name).map(|(_, value)| value);
    found.ok_or_else(|| Error::argument(format!("the checkpoint has no tensor {name:?} of the input")))
}

/// Returns the states of all games, `[games, n]`.
pub(crate) fn states_of_games(simulators: &Simulators) -> Result<HostTensor> {
    let games: Vec<Vec<f64>> = simulators.games().map(Episodes::state).collect();
    let sizes = [games.len(), games.first().map_or(0, Vec::len)];
    HostTensor::new(sizes, games.concat())
}

/// Restores the states that [`states_of_games`] returned.
pub(crate) fn restore_games(simulators: &mut Simulators, states: &HostTensor) -> Result<()> {
    let count = simulators.games().count();
    let size = simulators.games().next().map_or(0, |game| game.state().len());
    if states.sizes() != [count, size] {
        return Err(Error::argument("the checkpoint holds another game, or another number of games")
            .note("start over with --fresh"));
    }
    let states = states.as_slice::<f64>()?.chunks(size);
    simulators.games_mut().zip(states).for_each(|(game, state)| game.set_state(state));
    Ok(())
}
