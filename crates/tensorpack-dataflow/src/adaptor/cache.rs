//! A pass in memory.

use crate::lookup::LookupReader;
use crate::{DataFlow, Flow, Lookup, Reader, Resume, Sample, Seed, State};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The samples of the input's first pass, kept in memory and read again in every pass: [`DataFlow::cache`].
///
/// All readers share them. A sample that can be looked up is made when it is first asked for; others are read in order.
#[derive(Clone)]
#[doc(alias = "CacheData")]
pub struct Cache {
    inner: Flow,
    kept: Arc<Mutex<Option<KeptFor>>>,
}

/// What is kept, and the seed it was made with.
type KeptFor = (Seed, Arc<Kept>);

enum Kept {
    ByPlace { samples: Vec<OnceLock<Sample>>, inner: Arc<dyn Lookup> },
    InOrder(Mutex<InOrder>),
}

/// What has been read so far, and where the rest comes from.
struct InOrder {
    samples: Vec<Result<Sample>>,
    rest: Option<Box<dyn Reader>>,
}

impl Cache {
    pub(crate) fn new(inner: impl DataFlow + 'static) -> Cache {
        Cache { inner: Arc::new(inner), kept: Arc::default() }
    }

    fn kept(&self, seed: Seed) -> Result<Arc<Kept>> {
        let mut kept = lock(&self.kept);
        if let Some((of, kept)) = &*kept
            && *of == seed
        {
            return Ok(kept.clone());
        }
        let new = match (self.inner.lookup(seed)?, self.inner.size()) {
            (Some(inner), Some(size)) => {
                Kept::ByPlace { samples: (0..size).map(|_| OnceLock::new()).collect(), inner }
            }
            _ => {
                let rest = Some(self.inner.open(seed, &State::start())?);
                Kept::InOrder(Mutex::new(InOrder { samples: Vec::new(), rest }))
            }
        };
        let new = Arc::new(new);
        *kept = Some((seed, new.clone()));
        Ok(new)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// The sample at `index`, or `None` behind the last.
    fn get(&self, index: u64) -> Result<Option<Sample>> {
        match self {
            Kept::ByPlace { samples, inner } => {
                let Some(place) = samples.get(index as usize) else { return Ok(None) };
                if let Some(sample) = place.get() {
                    return Ok(Some(sample.clone()));
                }
                // Two may make the same sample at the same time: they make the same.
                let sample = inner.get(0, index)?;
                Ok(Some(place.get_or_init(|| sample).clone()))
            }
            Kept::InOrder(kept) => {
                let mut kept = lock(kept);
                let InOrder { samples, rest } = &mut *kept;
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
        let kept = self.kept(seed)?;
        if let Kept::ByPlace { .. } = &*kept {
            return Ok(LookupReader::open(places(kept), self.size(), at));
        }
        Ok(Box::new(CacheReader { kept, at: State::at(at.epoch, at.index) }))
    }

    fn lookup(&self, seed: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        // Without a size, others would take it for endless.
        if self.size().is_none() { Ok(None) } else { Ok(Some(places(self.kept(seed)?))) }
    }
}

fn places(kept: Arc<Kept>) -> Arc<dyn Lookup> {
    Arc::new(move |_, index| {
        kept.get(index)?
            .ok_or_else(|| Error::new(ErrorKind::Data, format!("the cache ends before sample {index}")))
    })
}

struct CacheReader {
    kept: Arc<Kept>,
    at: State,
}

impl Reader for CacheReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.kept.get(self.at.index);
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}
