//! All samples in random order.

use super::permutation::Permutation;
use crate::lookup::LookupReader;
use crate::{DataFlow, Flow, Lookup, Reader, Resume, Seed, State};
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

    fn places(&self, seed: Seed) -> Result<Arc<dyn Lookup>> {
        let inner = self.inner.lookup(seed.of("input"))?;
        let (Some(inner), Some(size)) = (inner, self.inner.size()) else {
            let why = "shuffle takes samples from anywhere, but its input can only be read in order";
            let what = "use shuffle_window(n), or shuffle before the adaptor that reads in order, or cache() its results";
            return Err(Error::new(ErrorKind::Unsupported, why).note(what));
        };
        let seed = seed.of("shuffle");
        Ok(Arc::new(move |epoch, index| {
            inner.get(epoch, Permutation::new(size, &mut seed.draws(epoch, 0)).at(index))
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
        Ok(LookupReader::open(self.places(seed)?, self.size(), at))
    }

    fn lookup(&self, seed: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        self.places(seed).map(Some)
    }
}
