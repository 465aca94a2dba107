//! Windowed shuffling for sequential inputs.

use super::permutation::Permutation;
use crate::replay;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Shuffles windows of consecutive samples: [`DataFlow::shuffle_window`].
///
/// Reads its input in order and buffers one window. Unlike with a shuffle buffer, the index
/// determines the position, so resuming rereads at most one window.
#[derive(Clone)]
#[doc(alias = "LocallyShuffleData")]
pub struct ShuffleWindow {
    inner: Flow,
    window: u64,
}

impl ShuffleWindow {
    pub(crate) fn new(inner: impl DataFlow + 'static, window: usize) -> ShuffleWindow {
        ShuffleWindow { inner: Arc::new(inner), window: window as u64 }
    }

    fn check(&self) -> Result<()> {
        match self.window {
            0 => Err(Error::argument("shuffle_window: the window size must be at least 1")),
            _ => Ok(()),
        }
    }
}

impl DataFlow for ShuffleWindow {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        self.check()?;
        let begin = at.index - at.index % self.window;
        let inner = self.inner.open(seed.derive("input"), &at.input_or(at.epoch, begin))?;
        let reader = WindowReader {
            start: inner.state(),
            inner,
            window: self.window,
            seed: seed.derive("shuffle"),
            held: Vec::new(),
            order: None,
            at: State::at(at.epoch, begin),
        };
        replay::replay_to(Box::new(reader), at)
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.check()?;
        let inner = self.inner.open_indexed(seed.derive("input"))?;
        let (Some(inner), Some(size)) = (inner, self.inner.size()) else { return Ok(None) };
        let (window, seed) = (self.window, seed.derive("shuffle"));
        Ok(Some(Arc::new(move |epoch, index| {
            let (window_index, offset) = (index / window, index % window);
            let begin = window_index * window;
            let order = Permutation::new(window.min(size - begin), &mut seed.rng(epoch, window_index));
            inner.get(epoch, begin + order.at(offset))
        })))
    }
}

struct WindowReader {
    inner: Box<dyn Reader>,
    window: u64,
    seed: Seed,
    /// State of the input before the window was read.
    start: State,
    /// The samples of the window in input order; `None` once returned.
    held: Vec<Option<Result<Sample>>>,
    /// The order in which the window is returned, once it is complete.
    order: Option<Permutation>,
    at: State,
}

impl WindowReader {
    /// Reads a window. After a timeout, the next call continues where this one stopped.
    fn fill(&mut self) -> Result<()> {
        while (self.held.len() as u64) < self.window {
            match self.inner.read() {
                Ok(None) => break,
                Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                Ok(Some(sample)) => self.held.push(Some(Ok(sample))),
                Err(e) => self.held.push(Some(Err(e))),
            }
        }
        let mut rng = self.seed.rng(self.at.epoch, self.at.index / self.window);
        self.order = Some(Permutation::new(self.held.len() as u64, &mut rng));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Sample>> {
        let offset = self.at.index % self.window;
        if self.order.is_none() {
            self.fill()?;
        }
        let order = self.order.as_ref().filter(|_| offset < self.held.len() as u64);
        let Some(order) = order else { return Ok(None) };
        let position = order.at(offset) as usize;
        self.held[position].take().transpose()
    }
}

impl Reader for WindowReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        // The end of a full window or of the pass: the next read starts a new window.
        if self.order.is_some() && self.at.index.is_multiple_of(self.window) {
            self.held.clear();
            self.order = None;
            self.start = self.inner.state();
        }
        read
    }

    fn state(&self) -> State {
        self.at.with_nested_input(self.start.clone())
    }
}
