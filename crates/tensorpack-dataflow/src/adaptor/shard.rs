//! Sharding.

use crate::indexed_reader::SequentialReader;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result, Site};

/// Reads every `count`-th sample starting at `index`: [`DataFlow::shard`].
///
/// The shards `0..count` partition the samples. Their sizes differ by at most one; [`Shard::equal`]
/// drops the last few samples instead.
#[derive(Clone)]
pub struct Shard {
    inner: Flow,
    index: u64,
    count: u64,
    equal: bool,
    site: Site,
}

impl Shard {
    #[track_caller]
    pub(crate) fn new(inner: impl DataFlow + 'static, index: u64, count: u64) -> Shard {
        let site = Site::caller();
        Shard { inner: Arc::new(inner), index, count, equal: false, site }
    }

    /// Gives all shards the same size by dropping up to `count - 1` samples at the end of a pass.
    /// The size of the input must be known.
    #[must_use]
    pub fn equal(self) -> Shard {
        Shard { equal: true, ..self }
    }

    fn check(&self) -> Result<()> {
        let Shard { index, count, equal, .. } = *self;
        if index >= count {
            return Err(Error::argument(format!("shard: index {index} is out of range for {count} shards"))
                .at(self.site)
                .note("call shard(index, count) with an index from 0 to count - 1"));
        }
        if equal && self.inner.size().is_none() {
            return Err(Error::argument("shard: equal() needs an input with a known size").at(self.site));
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
        // No shards are an error that `open` reports. If the size were unknown, trainers would
        // complain about that first.
        let Some(even) = size.checked_div(self.count) else { return Some(size) };
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

/// Reads a sequential input and skips the samples of other shards.
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
                // A sample of another shard, or the end of the pass.
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
