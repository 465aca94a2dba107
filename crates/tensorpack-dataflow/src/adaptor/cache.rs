//! Caching a pass in memory.

use crate::indexed_reader::SequentialReader;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Caches the samples of the input's first pass in memory: [`DataFlow::cache`].
///
/// All readers share the cache. With random access a sample is computed on first use; otherwise
/// samples are read in order.
#[derive(Clone)]
#[doc(alias = "CacheData")]
pub struct Cache {
    inner: Flow,
    cached: Arc<Mutex<Option<SeededPass>>>,
}

/// The cache, and the seed it was filled with.
type SeededPass = (Seed, Arc<CachedPass>);

enum CachedPass {
    Indexed { samples: Vec<OnceLock<Sample>>, inner: Arc<dyn IndexedReader> },
    Sequential(Mutex<Sequential>),
}

/// The samples read so far, and the reader for the rest.
struct Sequential {
    samples: Vec<Result<Sample>>,
    rest: Option<Box<dyn Reader>>,
}

impl Cache {
    pub(crate) fn new(inner: impl DataFlow + 'static) -> Cache {
        Cache { inner: Arc::new(inner), cached: Arc::default() }
    }

    fn cached(&self, seed: Seed) -> Result<Arc<CachedPass>> {
        let mut cached = lock(&self.cached);
        if let Some((of, cached)) = &*cached
            && *of == seed
        {
            return Ok(cached.clone());
        }
        let new = match (self.inner.open_indexed(seed)?, self.inner.size()) {
            (Some(inner), Some(size)) => {
                CachedPass::Indexed { samples: (0..size).map(|_| OnceLock::new()).collect(), inner }
            }
            _ => {
                let rest = Some(self.inner.open(seed, &State::start())?);
                CachedPass::Sequential(Mutex::new(Sequential { samples: Vec::new(), rest }))
            }
        };
        let new = Arc::new(new);
        *cached = Some((seed, new.clone()));
        Ok(new)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CachedPass {
    /// Returns the sample at `index`, or `None` past the end.
    fn get(&self, index: u64) -> Result<Option<Sample>> {
        match self {
            CachedPass::Indexed { samples, inner } => {
                let Some(entry) = samples.get(index as usize) else { return Ok(None) };
                if let Some(sample) = entry.get() {
                    return Ok(Some(sample.clone()));
                }
                // Two threads may compute the same sample concurrently; the results are equal.
                let sample = inner.get(0, index)?;
                Ok(Some(entry.get_or_init(|| sample).clone()))
            }
            CachedPass::Sequential(cached) => {
                let mut cached = lock(cached);
                let Sequential { samples, rest } = &mut *cached;
                while samples.len() as u64 <= index
                    && let Some(reader) = rest
                {
                    match reader.read() {
                        Ok(None) => *rest = None,
                        Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                        Ok(Some(sample)) => samples.push(Ok(sample)),
                        Err(e) => samples.push(Err(e)),
                    }
                }
                samples.get(index as usize).cloned().transpose()
            }
        }
    }
}

impl DataFlow for Cache {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let cached = self.cached(seed)?;
        if let CachedPass::Indexed { .. } = &*cached {
            return Ok(SequentialReader::open(indexed_reader(cached), self.size(), at));
        }
        Ok(Box::new(CacheReader { cached, at: State::at(at.epoch, at.index) }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        // Without a size it would count as infinite.
        if self.size().is_none() { Ok(None) } else { Ok(Some(indexed_reader(self.cached(seed)?))) }
    }
}

fn indexed_reader(cached: Arc<CachedPass>) -> Arc<dyn IndexedReader> {
    Arc::new(move |_, index| {
        cached
            .get(index)?
            .ok_or_else(|| Error::new(ErrorKind::Data, format!("the cache ends before sample {index}")))
    })
}

struct CacheReader {
    cached: Arc<CachedPass>,
    at: State,
}

impl Reader for CacheReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.cached.get(self.at.index);
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}
