//! Joining the components of several dataflows.

use super::batch_builder::BatchBuilder;
use super::input_readers::InputReaders;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// Joins one sample of each input into one, component after component. A pass ends with the
/// shortest input.
#[derive(Clone)]
#[doc(alias = "JoinData")]
pub struct Zip {
    parts: Vec<Flow>,
}

impl Zip {
    /// Creates the zip of `parts` in this order.
    pub fn new(parts: impl IntoIterator<Item = Flow>) -> Zip {
        Zip { parts: parts.into_iter().collect() }
    }
}

impl DataFlow for Zip {
    fn size(&self) -> Option<u64> {
        let sizes: Option<Vec<u64>> = self.parts.iter().map(|p| p.size()).collect();
        Some(sizes?.into_iter().min().unwrap_or(0))
    }

    fn resume(&self) -> Resume {
        self.parts.iter().map(|p| p.resume()).max().unwrap_or(Resume::Seek)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let n = self.parts.len();
        let bare = || vec![State::at(at.epoch, at.index); n];
        let states = if at.inputs.is_empty() { bare() } else { at.inputs.clone() };
        if n == 0 || states.len() != n {
            let why = format!("the state has {} inputs, but the zip has {n}", states.len());
            return Err(Error::argument(why)
                .note("zip at least one dataflow, and the same number as when the state was saved"));
        }
        let inputs = InputReaders::open(&self.parts, seed, &states)?;
        let builder = BatchBuilder::new(n, false, false);
        Ok(Box::new(ZipReader {
            start: inputs.states_if_needed(),
            inputs,
            builder,
            ended: false,
            at: State::at(at.epoch, at.index),
        }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        if self.size().is_none() {
            return Ok(None);
        }
        let indexed = |(i, part): (usize, &Flow)| part.open_indexed(InputReaders::seed(seed, i));
        let parts: Option<Vec<_>> = self.parts.iter().enumerate().map(indexed).collect::<Result<_>>()?;
        let Some(parts) = parts else { return Ok(None) };
        Ok(Some(Arc::new(move |epoch, index| {
            let samples: Vec<Sample> = parts.iter().map(|p| p.get(epoch, index)).collect::<Result<_>>()?;
            Ok(samples.concat())
        })))
    }
}

struct ZipReader {
    inputs: InputReaders,
    builder: BatchBuilder<Sample>,
    /// States of the inputs before the current sample, if ours does not determine them.
    start: Vec<State>,
    /// One input's pass has ended; the others must be moved to the next one.
    ended: bool,
    at: State,
}

impl ZipReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        if !self.ended {
            let readers = &mut self.inputs.readers;
            match self.builder.next(|i| readers[i].read())? {
                Some(samples) => return Ok(Some(samples.concat())),
                None => self.ended = true,
            }
        }
        self.inputs.start_epoch(self.at.epoch + 1)?;
        self.ended = false;
        Ok(None)
    }
}

impl Reader for ZipReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        if !self.builder.is_partial() && !self.ended {
            self.start = self.inputs.states_if_needed();
        }
        read
    }

    fn state(&self) -> State {
        self.at.with_inputs(self.start.clone())
    }
}
