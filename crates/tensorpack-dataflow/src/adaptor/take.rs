//! The first samples of every pass.

use super::input_readers::InputReaders;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Reads at most the first samples of every pass: [`DataFlow::take`].
#[derive(Clone)]
pub struct Take {
    inner: Flow,
    count: u64,
}

impl Take {
    pub(crate) fn new(inner: impl DataFlow + 'static, count: u64) -> Take {
        Take { inner: Arc::new(inner), count }
    }
}

impl DataFlow for Take {
    fn size(&self) -> Option<u64> {
        self.inner.size().map(|size| size.min(self.count))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let inner_at = at.input_or(at.epoch, at.index);
        let inner = InputReaders::open(std::slice::from_ref(&self.inner), seed, &[inner_at])?;
        Ok(Box::new(TakeReader { inner, count: self.count, at: State::at(at.epoch, at.index) }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        // Without a size it would count as infinite.
        if self.size().is_none() { Ok(None) } else { self.inner.open_indexed(seed) }
    }
}

struct TakeReader {
    inner: InputReaders,
    count: u64,
    at: State,
}

impl Reader for TakeReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = if self.at.index < self.count {
            self.inner.readers[0].read()
        } else {
            self.inner.start_epoch(self.at.epoch + 1).map(|()| None)
        };
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_inputs(self.inner.states_if_needed())
    }
}
