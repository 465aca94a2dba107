//! The input of a worker pool.

use crate::{DataFlow, Flow, IndexedReader, Reader, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Hands out input samples in order.
pub(super) enum WorkSource {
    /// Samples are read here, by one thread at a time.
    Sequential(Box<dyn Reader>),
    /// Only positions are handed out; the workers read the samples concurrently.
    Indexed { indexed: Arc<dyn IndexedReader>, size: Option<u64>, at: State },
}

/// A sample, or the reader to get it from.
pub(super) enum Input {
    Loaded(Sample),
    Deferred(Arc<dyn IndexedReader>),
}

/// An input sample and its position.
pub(super) struct PendingSample {
    pub(super) input: Input,
    pub(super) epoch: u64,
    pub(super) index: u64,
}

impl PendingSample {
    pub(super) fn sample(self) -> Result<Sample> {
        match self.input {
            Input::Loaded(sample) => Ok(sample),
            Input::Deferred(indexed) => indexed.get(self.epoch, self.index),
        }
    }
}

impl WorkSource {
    pub(super) fn open(flow: &Flow, seed: Seed, at: &State) -> Result<WorkSource> {
        Ok(match flow.open_indexed(seed)? {
            Some(indexed) => {
                WorkSource::Indexed { indexed, size: flow.size(), at: State::at(at.epoch, at.index) }
            }
            None => WorkSource::Sequential(DataFlow::open(flow, seed, at)?),
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<PendingSample>> {
        let State { epoch, index, .. } = self.state();
        match self {
            WorkSource::Sequential(reader) => {
                let read = reader.read()?;
                Ok(read.map(|sample| PendingSample { input: Input::Loaded(sample), epoch, index }))
            }
            WorkSource::Indexed { indexed, size, at } => {
                let ended = size.is_some_and(|size| index >= size);
                let pending =
                    (!ended).then(|| PendingSample { input: Input::Deferred(indexed.clone()), epoch, index });
                let next = Ok(pending);
                at.advance(&next);
                next
            }
        }
    }

    /// Returns the state of the input after everything handed out so far.
    pub(super) fn state(&self) -> State {
        match self {
            WorkSource::Sequential(reader) => reader.state(),
            WorkSource::Indexed { at, .. } => at.clone(),
        }
    }
}
