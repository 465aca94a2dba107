//! Sources that can give any of their samples at once.

use crate::indexed_reader::{SequentialReader, sample_error};
use crate::{DataFlow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Samples by index: the two functions a data set needs. Every one is a [`DataFlow`] that reads them in order, and that
/// seeks, shuffles and shards without reading what is left out. Cloning shares the data.
pub trait RandomAccess: Clone + Send + Sync + 'static {
    /// How many samples there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at `index`, which is below [`RandomAccess::len`]. An error should name the file; which sample it was is
    /// added to it.
    fn get(&self, index: u64) -> Result<Sample>;
}

impl<S: RandomAccess> DataFlow for S {
    fn size(&self) -> Option<u64> {
        Some(self.len())
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, _: Seed, at: &State) -> Result<Box<dyn Reader>> {
        Ok(SequentialReader::open(indexed_reader(self), self.size(), at))
    }

    fn open_indexed(&self, _: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        Ok(Some(indexed_reader(self)))
    }
}

fn indexed_reader<S: RandomAccess>(source: &S) -> Arc<dyn IndexedReader> {
    let source = source.clone();
    Arc::new(move |epoch, index| source.get(index).map_err(|e| sample_error(e, epoch, index)))
}
