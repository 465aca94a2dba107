//! Several dataflows that are read together.

use crate::{DataFlow, Flow, Reader, Seed, State};
use tensorpack_tensor::Result;

/// The open inputs of an adaptor.
pub(crate) struct InputReaders {
    flows: Vec<Flow>,
    seed: Seed,
    pub(crate) readers: Vec<Box<dyn Reader>>,
}

impl InputReaders {
    /// Opens each where it is told to stand.
    pub(crate) fn open(flows: &[Flow], seed: Seed, states: &[State]) -> Result<InputReaders> {
        let open = |(i, state)| DataFlow::open(&flows[i], InputReaders::seed(seed, i), state);
        let readers = states.iter().enumerate().map(open).collect::<Result<_>>()?;
        Ok(InputReaders { flows: flows.to_vec(), seed, readers })
    }

    /// The seed of input `i`: two that are the same dataflow draw different numbers.
    pub(crate) fn seed(seed: Seed, i: usize) -> Seed {
        if i == 0 { seed } else { seed.derive(&format!("input {i}")) }
    }

    /// Brings all to the beginning of pass `epoch`, those in the middle of the pass before by opening them again.
    pub(crate) fn start_epoch(&mut self, epoch: u64) -> Result<()> {
        for (i, reader) in self.readers.iter_mut().enumerate() {
            let State { epoch: at, index, .. } = reader.state();
            let flow = &self.flows[i];
            if (at, index) == (epoch, 0) {
                continue;
            }
            // At the end of its pass: it has but to say so.
            if at + 1 == epoch && flow.size().is_some_and(|size| index == size) && reader.read()?.is_none() {
                continue;
            }
            *reader = flow.open(InputReaders::seed(self.seed, i), &State::at(epoch, 0))?;
        }
        Ok(())
    }

    /// Where they stand, if their pass and index are not all of it.
    pub(crate) fn states(&self) -> Vec<State> {
        self.readers.iter().map(|r| r.state()).collect()
    }

    /// [`InputReaders::states`], where their passes and indices follow from ours: none if those are all.
    pub(crate) fn states_if_needed(&self) -> Vec<State> {
        let states = self.states();
        if states.iter().all(|s| s.inputs.is_empty()) { Vec::new() } else { states }
    }
}
