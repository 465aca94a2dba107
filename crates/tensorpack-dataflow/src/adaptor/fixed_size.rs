//! Passes of a fixed length.

use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Passes of a fixed length, each continuing where the previous one stopped:
/// [`DataFlow::fixed_size`].
#[derive(Clone)]
#[doc(alias = "FixedSizeData")]
pub struct FixedSize {
    inner: Flow,
    size: u64,
}

impl FixedSize {
    pub(crate) fn new(inner: impl DataFlow + 'static, size: u64) -> FixedSize {
        FixedSize { inner: Arc::new(inner), size }
    }

    /// Returns the number of samples before a position, counted from the first pass.
    fn samples_before(size: u64, epoch: u64, index: u64) -> u64 {
        epoch.saturating_mul(size).saturating_add(index.min(size))
    }
}

impl DataFlow for FixedSize {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let samples_before = FixedSize::samples_before(self.size, at.epoch, at.index);
        let (inner_at, mut missing) = match (at.inputs.first(), self.inner.size()) {
            (Some(stored), _) => (stored.clone(), 0),
            (None, Some(0)) => return Err(empty_pass_error()),
            (None, Some(size)) => (State::at(samples_before / size, samples_before % size), 0),
            (None, None) => (State::start(), samples_before),
        };
        let mut inner = self.inner.open(seed, &inner_at)?;
        while missing > 0 {
            match read_across_passes(inner.as_mut()) {
                Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                _ => missing -= 1,
            }
        }
        let at = State::at(at.epoch, at.index.min(self.size));
        Ok(Box::new(FixedReader { inner, sized: self.inner.size().is_some(), size: self.size, at }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        let Some(inner) = self.inner.open_indexed(seed)? else { return Ok(None) };
        let size = self.size;
        Ok(match self.inner.size() {
            Some(0) | None => None,
            Some(pass) => Some(Arc::new(move |epoch, index| {
                let samples_before = FixedSize::samples_before(size, epoch, index);
                inner.get(samples_before / pass, samples_before % pass)
            })),
        })
    }
}

/// The error of repeating an empty pass forever.
pub(crate) fn empty_pass_error() -> Error {
    Error::new(ErrorKind::Data, "cannot repeat an empty pass")
}

/// Returns the next sample, starting the next pass if this one has ended.
pub(crate) fn read_across_passes(reader: &mut dyn Reader) -> Result<Sample> {
    for _ in 0..2 {
        if let Some(sample) = reader.read()? {
            return Ok(sample);
        }
    }
    Err(empty_pass_error())
}

struct FixedReader {
    inner: Box<dyn Reader>,
    sized: bool,
    size: u64,
    at: State,
}

impl Reader for FixedReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = if self.at.index < self.size {
            read_across_passes(self.inner.as_mut()).map(Some)
        } else {
            Ok(None)
        };
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        let inner = self.inner.state();
        if self.sized { self.at.with_nested_input(inner) } else { self.at.with_inputs(vec![inner]) }
    }
}
