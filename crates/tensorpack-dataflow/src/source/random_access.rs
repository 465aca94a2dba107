//! Sources with random access (map-style datasets).

use crate::indexed_reader::{SequentialReader, sample_error};
use crate::{DataFlow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// A source with random access: the two functions a dataset has to implement.
///
/// Every implementation is a [`DataFlow`] that reads in order, and seeks, shuffles and shards
/// without reading skipped samples. Clones share the data.
pub trait RandomAccess: Clone + Send + Sync + 'static {
    /// Returns the number of samples.
    fn len(&self) -> u64;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample at `index`, which is below [`RandomAccess::len`]. Errors should name the
    /// file; the sample's position is added automatically.
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
