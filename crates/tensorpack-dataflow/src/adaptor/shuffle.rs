//! Full shuffling.

use super::permutation::Permutation;
use crate::indexed_reader::SequentialReader;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Reads the samples of every pass in a new random order: [`DataFlow::shuffle`].
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
            let why = "shuffle needs random access, but its input can only be read in order";
            let what = "use shuffle_window(n), shuffle before the sequential adaptor, or cache() its output";
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
