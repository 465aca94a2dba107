//! Sources that can give any of their samples at once.

use crate::lookup::{LookupReader, name_sample};
use crate::{DataFlow, Lookup, Reader, Resume, Sample, Seed, State};
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
        Ok(LookupReader::open(places(self), self.size(), at))
    }

    fn lookup(&self, _: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        Ok(Some(places(self)))
    }
}

fn places<S: RandomAccess>(source: &S) -> Arc<dyn Lookup> {
    let source = source.clone();
    Arc::new(move |epoch, index| source.get(index).map_err(|e| name_sample(e, epoch, index)))
}
