//! The readers of an adaptor with several inputs.

use crate::{DataFlow, Flow, Reader, Seed, State};
use tensorpack_tensor::Result;

/// The open readers of an adaptor's inputs.
pub(crate) struct InputReaders {
    flows: Vec<Flow>,
    seed: Seed,
    pub(crate) readers: Vec<Box<dyn Reader>>,
}

impl InputReaders {
    /// Opens every input at its state.
    pub(crate) fn open(flows: &[Flow], seed: Seed, states: &[State]) -> Result<InputReaders> {
        let open = |(i, state)| DataFlow::open(&flows[i], InputReaders::seed(seed, i), state);
        let readers = states.iter().enumerate().map(open).collect::<Result<_>>()?;
        Ok(InputReaders { flows: flows.to_vec(), seed, readers })
    }

    /// Returns the seed of input `i`. The same dataflow used twice gets different random numbers.
    pub(crate) fn seed(seed: Seed, i: usize) -> Seed {
        if i == 0 { seed } else { seed.derive(&format!("input {i}")) }
    }

    /// Moves all readers to the start of pass `epoch`. Readers still inside the previous pass are
    /// reopened.
    pub(crate) fn start_epoch(&mut self, epoch: u64) -> Result<()> {
        for (i, reader) in self.readers.iter_mut().enumerate() {
            let State { epoch: at, index, .. } = reader.state();
            let flow = &self.flows[i];
            if (at, index) == (epoch, 0) {
                continue;
            }
            // At the end of its pass: reading the end is enough.
            if at + 1 == epoch && flow.size().is_some_and(|size| index == size) && reader.read()?.is_none() {
                continue;
            }
            *reader = flow.open(InputReaders::seed(self.seed, i), &State::at(epoch, 0))?;
        }
        Ok(())
    }

    /// Returns the states of all inputs.
    pub(crate) fn states(&self) -> Vec<State> {
        self.readers.iter().map(|r| r.state()).collect()
    }

    /// Like [`InputReaders::states`] for inputs whose position follows from ours: empty unless an
    /// input has inputs of its own.
    pub(crate) fn states_if_needed(&self) -> Vec<State> {
        let states = self.states();
        if states.iter().all(|s| s.inputs.is_empty()) { Vec::new() } else { states }
    }
}
