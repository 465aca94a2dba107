//! Repeating every sample.

use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Repeats every sample several times in a row: [`DataFlow::repeat_each`].
#[derive(Clone)]
#[doc(alias = "RepeatedDataPoint")]
pub struct RepeatEach {
    inner: Flow,
    times: u64,
}

impl RepeatEach {
    pub(crate) fn new(inner: impl DataFlow + 'static, times: u64) -> RepeatEach {
        RepeatEach { inner: Arc::new(inner), times }
    }

    fn check(&self) -> Result<()> {
        match self.times {
            0 => Err(Error::argument("repeat_each: the number of repetitions must be at least 1")),
            _ => Ok(()),
        }
    }
}

impl DataFlow for RepeatEach {
    fn size(&self) -> Option<u64> {
        self.inner.size()?.checked_mul(self.times)
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        self.check()?;
        let inner = self.inner.open(seed, &at.input_or(at.epoch, at.index / self.times))?;
        Ok(Box::new(EachReader {
            start: inner.state(),
            inner,
            times: self.times,
            current: None,
            at: State::at(at.epoch, at.index),
        }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.check()?;
        let times = self.times;
        let inner = self.inner.open_indexed(seed)?;
        Ok(inner.map(|inner| Arc::new(move |epoch, index: u64| inner.get(epoch, index / times)) as _))
    }
}

struct EachReader {
    inner: Box<dyn Reader>,
    times: u64,
    /// The sample being repeated, or its error.
    current: Option<Result<Sample>>,
    /// State of the input before that sample.
    start: State,
    at: State,
}

impl Reader for EachReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = match self.current.take() {
            Some(current) => current.map(Some),
            None => {
                self.start = self.inner.state();
                self.inner.read()
            }
        };
        self.at.advance(&read);
        if !self.at.index.is_multiple_of(self.times) {
            self.current = match &read {
                Err(e) if e.kind() == ErrorKind::Deadline => None,
                Err(e) => Some(Err(e.clone())),
                Ok(sample) => sample.clone().map(Ok),
            };
        } else {
            self.start = self.inner.state();
        }
        read
    }

    fn state(&self) -> State {
        self.at.with_nested_input(self.start.clone())
    }
}
