//! Where a reader stands.

/// A position in a dataflow: so many samples of this pass have been read.
///
/// Pass and index alone are enough for every dataflow. One that cannot compute where its inputs stand (a filter, whose
/// index says nothing of how many were dropped) adds their states, and needs not read again what came before.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// How many samples of the pass have been read.
    pub index: u64,
    /// Where the inputs stand, if the dataflow says so.
    pub inputs: Vec<State>,
}

impl State {
    /// `index` samples into pass `epoch`.
    pub fn at(epoch: u64, index: u64) -> State {
        State { epoch, index, inputs: Vec::new() }
    }

    /// The beginning of the first pass.
    pub fn start() -> State {
        State::default()
    }
}
