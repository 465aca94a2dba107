//! A part of the samples, for one of several readers.

use crate::indexed_reader::SequentialReader;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Every `count`-th sample, from the `index`-th on: [`DataFlow::shard`].
///
/// Together the shards `0..count` read every sample once. Their sizes differ by one where the samples cannot be split
/// evenly; [`Shard::equal`] leaves out the last few instead.
#[derive(Clone)]
pub struct Shard {
    inner: Flow,
    index: u64,
    count: u64,
    equal: bool,
}

impl Shard {
    pub(crate) fn new(inner: impl DataFlow + 'static, index: u64, count: u64) -> Shard {
        Shard { inner: Arc::new(inner), index, count, equal: false }
    }

    /// Gives all shards the same size: up to `count - 1` samples at the end of a pass are left out. The size of the input
    /// must be known.
    #[must_use]
    pub fn equal(self) -> Shard {
        Shard { equal: true, ..self }
    }

    fn check(&self) -> Result<()> {
        let Shard { index, count, equal, .. } = *self;
        if index >= count {
            return Err(Error::argument(format!(
                "there is no shard {index} of {count}: they are counted from 0"
            )));
        }
        if equal && self.inner.size().is_none() {
            return Err(Error::argument("equal shards need an input of known size"));
        }
        Ok(())
    }

    fn input_index(&self, index: u64) -> u64 {
        index.saturating_mul(self.count).saturating_add(self.index)
    }
}

impl DataFlow for Shard {
    fn size(&self) -> Option<u64> {
        let size = self.inner.size()?;
        let even = size.checked_div(self.count)?;
        let one_more = !self.equal && size % self.count > self.index;
        Some(even + u64::from(one_more))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        if let Some(indexed) = self.open_indexed(seed)?.filter(|_| self.size().is_some()) {
            return Ok(SequentialReader::open(indexed, self.size(), at));
        }
        let input_index = self.input_index(at.index) - self.index;
        let inner = self.inner.open(seed, &at.input_or(at.epoch, input_index))?;
        Ok(Box::new(ShardReader {
            inner,
            shard: self.clone(),
            size: self.size(),
            at: State::at(at.epoch, at.index),
        }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.check()?;
        let shard = self.clone();
        let inner = self.inner.open_indexed(seed)?;
        Ok(inner.map(|inner| Arc::new(move |epoch, index| inner.get(epoch, shard.input_index(index))) as _))
    }
}

/// Reads an input that cannot seek, and leaves out what belongs to the other shards.
struct ShardReader {
    inner: Box<dyn Reader>,
    shard: Shard,
    size: Option<u64>,
    at: State,
}

impl ShardReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        let wanted = self.shard.input_index(self.at.index);
        let ended = self.size.is_some_and(|size| self.at.index >= size);
        while self.inner.state().epoch == self.at.epoch {
            let is_ours = self.inner.state().index == wanted && !ended;
            match self.inner.read() {
                Err(e) if is_ours || e.kind() == ErrorKind::Deadline => return Err(e),
                Ok(Some(sample)) if is_ours => return Ok(Some(sample)),
                // Another shard's, or the end of the pass.
                _ => {}
            }
        }
        Ok(None)
    }
}

impl Reader for ShardReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_nested_input(self.inner.state())
    }
}
