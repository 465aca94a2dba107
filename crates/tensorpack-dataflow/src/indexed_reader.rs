//! Random access to the samples of a dataflow.

use crate::{Reader, Sample, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Random access to the samples of an opened dataflow. Shuffling and sharding are built on it, and
/// it lets parallel workers read concurrently.
#[doc(alias = "Lookup")]
pub trait IndexedReader: Send + Sync {
    /// Returns sample `index` of pass `epoch`, the same one that sequential reading returns there.
    fn get(&self, epoch: u64, index: u64) -> Result<Sample>;
}

impl<F: Fn(u64, u64) -> Result<Sample> + Send + Sync> IndexedReader for F {
    fn get(&self, epoch: u64, index: u64) -> Result<Sample> {
        self(epoch, index)
    }
}

/// Reads an [`IndexedReader`] in order.
pub(crate) struct SequentialReader {
    indexed: Arc<dyn IndexedReader>,
    size: Option<u64>,
    at: State,
}

impl SequentialReader {
    /// Reads passes of `size` samples (infinite if `None`) starting at `at`.
    pub(crate) fn open(indexed: Arc<dyn IndexedReader>, size: Option<u64>, at: &State) -> Box<dyn Reader> {
        Box::new(SequentialReader { indexed, size, at: State::at(at.epoch, at.index) })
    }
}

impl Reader for SequentialReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.at;
        let read = match self.size {
            Some(size) if index >= size => Ok(None),
            _ => self.indexed.get(epoch, index).map(Some),
        };
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}

/// Adds the position of the failed sample to an error.
///
/// A deadline error from inside the user's function becomes a data error: the sample has been
/// consumed, and reading again would not wait for it.
pub(crate) fn sample_error(error: Error, epoch: u64, index: u64) -> Error {
    let error = match error.kind() {
        ErrorKind::Deadline => Error::new(ErrorKind::Data, error.to_string()),
        _ => error,
    };
    error.within(format!("sample {index} of epoch {epoch}"))
}
