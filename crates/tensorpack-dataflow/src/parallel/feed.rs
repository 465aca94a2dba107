//! What the threads of a stage take their work from.

use crate::{DataFlow, Flow, Lookup, Reader, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Gives out the input, one place after the other.
pub(super) enum Feed {
    /// Read here, one thread at a time.
    Read(Box<dyn Reader>),
    /// Only places are given out; the threads look up the samples, all at the same time.
    LookUp { lookup: Arc<dyn Lookup>, size: Option<u64>, at: State },
}

/// A sample that is there, or how to get it.
pub(super) enum Input {
    Ready(Sample),
    At(Arc<dyn Lookup>),
}

/// An input and its place.
pub(super) struct Ticket {
    pub(super) input: Input,
    pub(super) epoch: u64,
    pub(super) index: u64,
}

impl Ticket {
    pub(super) fn sample(self) -> Result<Sample> {
        match self.input {
            Input::Ready(sample) => Ok(sample),
            Input::At(lookup) => lookup.get(self.epoch, self.index),
        }
    }
}

impl Feed {
    pub(super) fn open(flow: &Flow, seed: Seed, at: &State) -> Result<Feed> {
        Ok(match flow.lookup(seed)? {
            Some(lookup) => Feed::LookUp { lookup, size: flow.size(), at: State::at(at.epoch, at.index) },
            None => Feed::Read(DataFlow::open(flow, seed, at)?),
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Ticket>> {
        let State { epoch, index, .. } = self.state();
        match self {
            Feed::Read(reader) => {
                let read = reader.read()?;
                Ok(read.map(|sample| Ticket { input: Input::Ready(sample), epoch, index }))
            }
            Feed::LookUp { lookup, size, at } => {
                let over = size.is_some_and(|size| index >= size);
                let ticket = (!over).then(|| Ticket { input: Input::At(lookup.clone()), epoch, index });
                let given = Ok(ticket);
                at.advance(&given);
                given
            }
        }
    }

    /// Where the input stands, behind what has been given out.
    pub(super) fn state(&self) -> State {
        match self {
            Feed::Read(reader) => reader.state(),
            Feed::LookUp { at, .. } => at.clone(),
        }
    }
}
