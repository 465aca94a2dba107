//! All samples in random order.

use super::permutation::Permutation;
use crate::indexed_reader::SequentialReader;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The samples of a pass in random order, a new one in every pass: [`DataFlow::shuffle`].
#[derive(Clone)]
pub struct Shuffle {
    inner: Flow,
}

impl Shuffle {
    pub(crate) fn new(inner: impl DataFlow + 'static) -> Shuffle {
        Shuffle { inner: Arc::new(inner) }
    }

    fn permuted(&self, seed: Seed) -> Result<Arc<dyn IndexedReader>> {
        let inner = self.inner.open_indexed(seed.derive("input"))?;
        let (Some(inner), Some(size)) = (inner, self.inner.size()) else {
            let why = "shuffle takes samples from anywhere, but its input can only be read in order";
            let what = "use shuffle_window(n), or shuffle before the adaptor that reads in order, or cache() its results";
            return Err(Error::new(ErrorKind::Unsupported, why).note(what));
        };
        let seed = seed.derive("shuffle");
        Ok(Arc::new(move |epoch, index| {
            inner.get(epoch, Permutation::new(size, &mut seed.rng(epoch, 0)).at(index))
        }))
    }
}

impl DataFlow for Shuffle {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        Ok(SequentialReader::open(self.permuted(seed)?, self.size(), at))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.permuted(seed).map(Some)
    }
}
