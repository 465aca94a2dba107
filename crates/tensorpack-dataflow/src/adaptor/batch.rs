//! Batches of consecutive samples.

use super::batch_builder::{self, BatchBuilder};
use super::stack::{Padding, stack};
use crate::indexed_reader::sample_error;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Stacks consecutive samples along a new first axis: [`DataFlow::batch`],
/// [`DataFlow::batch_padded`].
#[derive(Clone)]
#[doc(alias = "BatchData")]
pub struct Batch {
    inner: Flow,
    batch_size: usize,
    padding: Padding,
    keep_remainder: bool,
}

impl Batch {
    pub(crate) fn new(inner: impl DataFlow + 'static, batch_size: usize, padding: Padding) -> Batch {
        Batch { inner: Arc::new(inner), batch_size, padding, keep_remainder: false }
    }

    /// Keeps the remainder at the end of a pass as a smaller batch instead of dropping it.
    #[doc(alias = "remainder")]
    #[must_use]
    pub fn keep_remainder(self) -> Batch {
        Batch { keep_remainder: true, ..self }
    }

    fn check(&self) -> Result<()> {
        batch_builder::check_batch_size("batch", self.inner.size(), self.batch_size, self.keep_remainder)
    }
}

impl DataFlow for Batch {
    fn size(&self) -> Option<u64> {
        Some(batch_builder::num_batches(self.inner.size()?, self.batch_size, self.keep_remainder))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        self.check()?;
        let inner_at = at.input_or(at.epoch, at.index.saturating_mul(self.batch_size as u64));
        let ended = inner_at.epoch > at.epoch;
        let inner = self.inner.open(seed, &inner_at)?;
        Ok(Box::new(BatchReader {
            start: inner.state(),
            inner,
            builder: BatchBuilder::new(self.batch_size, self.keep_remainder, ended),
            padding: self.padding,
            at: State::at(at.epoch, at.index),
        }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.check()?;
        let Some(inner) = self.inner.open_indexed(seed)? else { return Ok(None) };
        let (batch_size, padding) = (self.batch_size as u64, self.padding);
        let end = self.inner.size().unwrap_or(u64::MAX);
        Ok(Some(Arc::new(move |epoch, index| {
            let indices = index * batch_size..end.min((index + 1) * batch_size);
            let samples: Vec<Sample> = indices.map(|i| inner.get(epoch, i)).collect::<Result<_>>()?;
            stack(&samples, padding).map_err(|e| sample_error(e, epoch, index))
        })))
    }
}

struct BatchReader {
    inner: Box<dyn Reader>,
    builder: BatchBuilder<Sample>,
    padding: Padding,
    /// State of the input at the start of the current batch.
    start: State,
    at: State,
}

impl Reader for BatchReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.at;
        let read = match self.builder.next(|_| self.inner.read()) {
            Ok(Some(samples)) => {
                stack(&samples, self.padding).map(Some).map_err(|e| sample_error(e, epoch, index))
            }
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        self.at.advance(&read);
        if !self.builder.is_partial() {
            self.start = self.inner.state();
        }
        read
    }

    fn state(&self) -> State {
        self.at.with_nested_input(self.start.clone())
    }
}
