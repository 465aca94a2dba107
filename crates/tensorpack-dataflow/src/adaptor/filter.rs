//! Filtering samples.

use crate::cancellation;
use crate::indexed_reader::sample_error;
use crate::{DataFlow, Flow, Reader, Resume, Sample, Seed, State, replay};
use std::sync::Arc;
use tensorpack_tensor::Result;

type Function = Arc<dyn Fn(Sample) -> Result<Option<Sample>> + Send + Sync>;

/// The samples that a function keeps: [`DataFlow::filter`], [`DataFlow::filter_map`].
///
/// The state includes that of the input, so resuming does not reread earlier samples.
#[derive(Clone)]
pub struct Filter {
    inner: Flow,
    function: Function,
}

impl Filter {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample) -> Result<Option<Sample>> + Send + Sync + 'static,
    ) -> Filter {
        Filter { inner: Arc::new(inner), function: Arc::new(function) }
    }
}

impl DataFlow for Filter {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let begin = if at.inputs.is_empty() { 0 } else { at.index };
        let inner = self.inner.open(seed, &at.input_or(at.epoch, 0))?;
        let reader = FilterReader { inner, function: self.function.clone(), at: State::at(at.epoch, begin) };
        replay::replay_to(Box::new(reader), at)
    }
}

struct FilterReader {
    inner: Box<dyn Reader>,
    function: Function,
    at: State,
}

impl FilterReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        loop {
            let State { epoch, index, .. } = self.inner.state();
            let Some(sample) = self.inner.read()? else { return Ok(None) };
            let kept = (self.function)(sample).map_err(|e| sample_error(e, epoch, index))?;
            if kept.is_some() {
                return Ok(kept);
            }
            cancellation::check_cancelled()?;
        }
    }
}

impl Reader for FilterReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_inputs(vec![self.inner.state()])
    }
}
