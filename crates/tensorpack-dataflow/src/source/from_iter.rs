//! Samples from an iterator.

use crate::indexed_reader::sample_error;
use crate::{DataFlow, Reader, Resume, Sample, Seed, State};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

type Samples = Box<dyn Iterator<Item = Result<Sample>> + Send>;

/// The samples of an iterator: one created by a function for every pass, or one that can be read
/// only once.
#[derive(Clone)]
#[doc(alias = "DataFromGenerator")]
#[doc(alias = "DataFromIterable")]
pub struct FromIter {
    passes: Passes,
    size: Option<u64>,
}

#[derive(Clone)]
enum Passes {
    Restartable(Arc<dyn Fn(u64) -> Samples + Send + Sync>),
    Once(Arc<Mutex<Option<Samples>>>),
}

impl FromIter {
    /// Creates passes from iterators returned by `make`, which receives the pass number. It must
    /// return the same samples for the same pass, because resuming replays the pass.
    pub fn new<I>(make: impl Fn(u64) -> I + Send + Sync + 'static) -> FromIter
    where
        I: Iterator<Item = Result<Sample>> + Send + 'static,
    {
        FromIter {
            passes: Passes::Restartable(Arc::new(move |epoch| Box::new(make(epoch).fuse()))),
            size: None,
        }
    }

    /// Creates the single pass of an iterator that cannot be restarted.
    pub fn once(samples: impl Iterator<Item = Result<Sample>> + Send + 'static) -> FromIter {
        let samples: Samples = Box::new(samples.fuse());
        FromIter { passes: Passes::Once(Arc::new(Mutex::new(Some(samples)))), size: None }
    }

    /// Declares the number of samples per pass. A pass of a different length is an error.
    #[doc(alias = "sized")]
    #[must_use]
    pub fn with_size(self, size: u64) -> FromIter {
        FromIter { size: Some(size), ..self }
    }

    fn pass(&self, epoch: u64) -> Result<Samples> {
        match &self.passes {
            Passes::Restartable(make) => Ok(make(epoch)),
            Passes::Once(samples) => {
                let taken = samples.lock().unwrap_or_else(PoisonError::into_inner).take();
                taken.filter(|_| epoch == 0).ok_or_else(|| {
                    let why = format!("pass {epoch} is not available: FromIter::once can be read only once");
                    Error::new(ErrorKind::Data, why)
                        .note("use FromIter::new with a function that creates the iterator")
                })
            }
        }
    }
}

impl DataFlow for FromIter {
    fn size(&self) -> Option<u64> {
        self.size
    }

    fn resume(&self) -> Resume {
        match self.passes {
            Passes::Restartable(_) => Resume::Replay,
            Passes::Once(_) => Resume::Never,
        }
    }

    fn open(&self, _: Seed, at: &State) -> Result<Box<dyn Reader>> {
        if self.resume() == Resume::Never && (at.epoch, at.index) != (0, 0) {
            let State { epoch, index, .. } = at;
            let why = format!("FromIter::once cannot resume at sample {index} of epoch {epoch}");
            let what = "use FromIter::new with a function that creates the iterator";
            return Err(Error::new(ErrorKind::Unsupported, why).note(what));
        }
        let mut samples = self.pass(at.epoch)?;
        for _ in 0..at.index {
            // Failed samples count as read.
            if samples.next().is_none() {
                break;
            }
        }
        let at = State::at(at.epoch, at.index);
        Ok(Box::new(IterReader { flow: self.clone(), samples: Some(samples), at }))
    }
}

struct IterReader {
    flow: FromIter,
    /// The iterator of the current pass, created on first use.
    samples: Option<Samples>,
    at: State,
}

impl IterReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.at;
        let samples = match &mut self.samples {
            Some(samples) => samples,
            None => self.samples.insert(self.flow.pass(epoch)?),
        };
        let next = samples.next();
        match self.flow.size {
            Some(size) if next.is_none() && index < size => {
                let why =
                    format!("pass {epoch} ended after {index} samples, but its declared size is {size}");
                Err(Error::new(ErrorKind::Data, why))
            }
            // One sample too many is reported once; then the pass ends.
            Some(size) if next.is_some() && index == size => {
                let why = format!("pass {epoch} continues past its declared size of {size} samples");
                Err(Error::new(ErrorKind::Data, why))
            }
            Some(size) if index > size => Ok(None),
            _ => next.transpose().map_err(|e| sample_error(e, epoch, index)),
        }
    }
}

impl Reader for IterReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        if let Ok(None) = read {
            self.samples = None;
        }
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}
