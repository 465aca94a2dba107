//! Random order among neighbours.

use super::permutation::Permutation;
use crate::replay;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Windows of `n` consecutive samples, each in random order: [`DataFlow::shuffle_window`].
///
/// It reads its input in order and holds one window. Where it stands is known from the index, unlike with a buffer that
/// samples leave at random.
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
            0 => Err(Error::argument("shuffle_window(0): a window has at least one sample")),
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
    /// Where the input stood before the window was read.
    start: State,
    /// The window as it was read; what has been given out is gone.
    held: Vec<Option<Result<Sample>>>,
    /// How it is given out, once it is complete.
    order: Option<Permutation>,
    at: State,
}

impl WindowReader {
    /// Reads a window. What takes too long is an error, and goes on from there the next time.
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
        // The last of a full window, or the end of the pass: what follows is another window.
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
