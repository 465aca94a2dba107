//! Concatenation of several passes.

use super::fixed_size::{empty_pass_error, read_across_passes};
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State, replay};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Concatenates passes of the input, finitely many or infinitely many: [`DataFlow::repeat`],
/// [`DataFlow::repeat_forever`].
///
/// The passes differ as usual: a shuffled input is in a new order in each.
#[derive(Clone)]
#[doc(alias = "RepeatedData")]
pub struct Repeat {
    inner: Flow,
    times: Option<u64>,
}

impl Repeat {
    pub(crate) fn new(inner: impl DataFlow + 'static, times: Option<u64>) -> Repeat {
        Repeat { inner: Arc::new(inner), times }
    }

    /// Returns the input's pass at which pass `epoch` starts. Pass 1 of an infinite repetition is
    /// never read but may be opened.
    fn first_epoch(times: Option<u64>, epoch: u64) -> u64 {
        epoch.saturating_mul(times.unwrap_or(1))
    }
}

impl DataFlow for Repeat {
    fn size(&self) -> Option<u64> {
        self.inner.size()?.checked_mul(self.times?)
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let first_epoch = Repeat::first_epoch(self.times, at.epoch);
        // With zero repetitions every pass is empty and the input stays at its start.
        let last = first_epoch + self.times.unwrap_or(u64::MAX - first_epoch).saturating_sub(1);
        let (inner_at, begin) = match (at.inputs.first(), self.inner.size()) {
            (Some(stored), _) => (stored.clone(), at.index),
            (None, Some(0)) if self.times.is_none() => return Err(empty_pass_error()),
            (None, Some(size)) => match at.index.checked_div(size) {
                Some(passes) if first_epoch + passes <= last => {
                    (State::at(first_epoch + passes, at.index % size), at.index)
                }
                _ => (State::at(last, size), at.index),
            },
            (None, None) => (State::at(first_epoch, 0), 0),
        };
        let inner = self.inner.open(seed, &inner_at)?;
        let reader = RepeatReader {
            inner,
            times: self.times,
            sized: self.inner.size().is_some(),
            at: State::at(at.epoch, begin),
        };
        replay::replay_to(Box::new(reader), at)
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        let Some(inner) = self.inner.open_indexed(seed)? else { return Ok(None) };
        let times = self.times;
        Ok(match self.inner.size() {
            Some(0) | None => None,
            Some(size) => Some(Arc::new(move |epoch, index: u64| {
                inner.get(Repeat::first_epoch(times, epoch) + index / size, index % size)
            })),
        })
    }
}

struct RepeatReader {
    inner: Box<dyn Reader>,
    times: Option<u64>,
    sized: bool,
    at: State,
}

impl RepeatReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        let Some(times) = self.times else { return read_across_passes(self.inner.as_mut()).map(Some) };
        let end = Repeat::first_epoch(self.times, self.at.epoch) + times;
        while self.inner.state().epoch < end {
            if let Some(sample) = self.inner.read()? {
                return Ok(Some(sample));
            }
        }
        Ok(None)
    }
}

impl Reader for RepeatReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        let inner = self.inner.state();
        if self.sized { self.at.with_nested_input(inner) } else { self.at.with_inputs(vec![inner]) }
    }
}
