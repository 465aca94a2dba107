//! Several samples as one.

use super::gather::{self, Gather};
use super::stack::{Fit, stack};
use crate::lookup::name_sample;
use crate::{DataFlow, Flow, Lookup, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Batches of consecutive samples, component by component along a new first axis: [`DataFlow::batch`],
/// [`DataFlow::batch_padded`].
#[derive(Clone)]
#[doc(alias = "BatchData")]
pub struct Batch {
    inner: Flow,
    batch: usize,
    fit: Fit,
    keep_remainder: bool,
}

impl Batch {
    pub(crate) fn new(inner: impl DataFlow + 'static, batch: usize, fit: Fit) -> Batch {
        Batch { inner: Arc::new(inner), batch, fit, keep_remainder: false }
    }

    /// Keeps what is left at the end of a pass, as a smaller batch. Otherwise it is dropped.
    #[doc(alias = "remainder")]
    #[must_use]
    pub fn keep_remainder(self) -> Batch {
        Batch { keep_remainder: true, ..self }
    }

    fn check(&self) -> Result<()> {
        gather::check("batch", self.inner.size(), self.batch, self.keep_remainder)
    }
}

impl DataFlow for Batch {
    fn size(&self) -> Option<u64> {
        Some(gather::batches(self.inner.size()?, self.batch, self.keep_remainder))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        self.check()?;
        let inner_at = at.input(at.epoch, at.index.saturating_mul(self.batch as u64));
        let ended = inner_at.epoch > at.epoch;
        let inner = self.inner.open(seed, &inner_at)?;
        Ok(Box::new(BatchReader {
            start: inner.state(),
            inner,
            gather: Gather::new(self.batch, self.keep_remainder, ended),
            fit: self.fit,
            at: State::at(at.epoch, at.index),
        }))
    }

    fn lookup(&self, seed: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        self.check()?;
        let Some(inner) = self.inner.lookup(seed)? else { return Ok(None) };
        let (batch, fit) = (self.batch as u64, self.fit);
        let end = self.inner.size().unwrap_or(u64::MAX);
        Ok(Some(Arc::new(move |epoch, index| {
            let places = index * batch..end.min((index + 1) * batch);
            let samples: Vec<Sample> = places.map(|i| inner.get(epoch, i)).collect::<Result<_>>()?;
            stack(&samples, fit).map_err(|e| name_sample(e, epoch, index))
        })))
    }
}

struct BatchReader {
    inner: Box<dyn Reader>,
    gather: Gather<Sample>,
    fit: Fit,
    /// Where the input stood before the batch.
    start: State,
    at: State,
}

impl Reader for BatchReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.at;
        let read = match self.gather.next(|_| self.inner.read()) {
            Ok(Some(samples)) => {
                stack(&samples, self.fit).map(Some).map_err(|e| name_sample(e, epoch, index))
            }
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        self.at.advance(&read);
        if !self.gather.is_open() {
            self.start = self.inner.state();
        }
        read
    }

    fn state(&self) -> State {
        self.at.over(self.start.clone())
    }
}
