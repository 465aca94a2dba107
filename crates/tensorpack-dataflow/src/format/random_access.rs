//! Sources that can give any of their samples at once.

use crate::{DataFlow, Reader, Resume, Sample, Seed, State};
use tensorpack_tensor::Result;

/// Samples by index. Every one is a [`DataFlow`] that reads them in order and opens anywhere. Cloning shares the data.
pub trait RandomAccess: Clone + Send + Sync + 'static {
    /// How many samples there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at `index`, which is below [`RandomAccess::len`].
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
        Ok(Box::new(InOrder { samples: self.clone(), epoch: at.epoch, index: at.index }))
    }
}

struct InOrder<S> {
    samples: S,
    epoch: u64,
    index: u64,
}

impl<S: RandomAccess> Reader for InOrder<S> {
    fn read(&mut self) -> Result<Option<Sample>> {
        if self.index >= self.samples.len() {
            (self.epoch, self.index) = (self.epoch + 1, 0);
            return Ok(None);
        }
        // Moved on first: after an error the reader stands behind the sample that failed.
        self.index += 1;
        self.samples.get(self.index - 1).map(Some)
    }

    fn state(&self) -> State {
        State::at(self.epoch, self.index)
    }
}
