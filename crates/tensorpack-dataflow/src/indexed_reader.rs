//! Samples by their place, for those who do not read them one after the other.

use crate::{Reader, Sample, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Any sample of a dataflow by its place, opened with a seed: what shuffles and shards are made of, and what lets
/// parallel workers read at the same time.
#[doc(alias = "Lookup")]
pub trait IndexedReader: Send + Sync {
    /// Sample `index` of pass `epoch`: the one that reading up to there gives.
    fn get(&self, epoch: u64, index: u64) -> Result<Sample>;
}

impl<F: Fn(u64, u64) -> Result<Sample> + Send + Sync> IndexedReader for F {
    fn get(&self, epoch: u64, index: u64) -> Result<Sample> {
        self(epoch, index)
    }
}

/// Reads place after place.
pub(crate) struct SequentialReader {
    indexed: Arc<dyn IndexedReader>,
    size: Option<u64>,
    at: State,
}

impl SequentialReader {
    /// Passes of `size` samples, or one without end, from `at` on.
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

/// Names the sample that making it failed for. A deadline that the function had of its own is a failure as any other:
/// the sample has been read, and the reader does not wait for it.
pub(crate) fn sample_error(error: Error, epoch: u64, index: u64) -> Error {
    let error = match error.kind() {
        ErrorKind::Deadline => Error::new(ErrorKind::Data, error.to_string()),
        _ => error,
    };
    error.within(format!("sample {index} of epoch {epoch}"))
}
