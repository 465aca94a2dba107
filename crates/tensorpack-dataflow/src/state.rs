//! Where a reader stands.

use tensorpack_tensor::{ErrorKind, Result};

/// A position in a dataflow: so many samples of this pass have been read.
///
/// Pass and index alone are enough for every dataflow. One that cannot compute where its inputs stand (a filter, whose
/// index says nothing of how many were dropped) adds their states, and needs not read again what came before.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// How many samples of the pass have been read, those that failed among them.
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

    /// Moves on by what was read: a sample, one that failed, or the end of the pass. A wait that took too long has read
    /// nothing.
    pub fn advance<T>(&mut self, read: &Result<Option<T>>) {
        match read {
            Ok(None) => (self.epoch, self.index) = (self.epoch + 1, 0),
            Err(e) if e.kind() == ErrorKind::Deadline => {}
            Ok(Some(_)) | Err(_) => self.index += 1,
        }
    }

    /// With the state of an input whose pass and index follow from ours: kept only if they are not all of it.
    pub(crate) fn over(&self, input: State) -> State {
        let inputs = if input.inputs.is_empty() { Vec::new() } else { vec![input] };
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// With the states of inputs of which ours says nothing.
    pub(crate) fn with(&self, inputs: Vec<State>) -> State {
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// Where the one input is to be opened: as told, or at this pass and index.
    pub(crate) fn input(&self, epoch: u64, index: u64) -> State {
        self.inputs.first().cloned().unwrap_or_else(|| State::at(epoch, index))
    }
}
