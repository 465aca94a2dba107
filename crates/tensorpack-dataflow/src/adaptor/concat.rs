//! Concatenation of dataflows.

use super::input_readers::InputReaders;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State, replay};
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// Reads one pass of each input, one after the other.
#[derive(Clone)]
#[doc(alias = "ConcatData")]
pub struct Concat {
    parts: Vec<Flow>,
}

impl Concat {
    /// Creates the concatenation of `parts` in this order.
    pub fn new(parts: impl IntoIterator<Item = Flow>) -> Concat {
        Concat { parts: parts.into_iter().collect() }
    }

    fn sizes(&self) -> Option<Vec<u64>> {
        self.parts.iter().map(|p| p.size()).collect()
    }
}

impl DataFlow for Concat {
    fn size(&self) -> Option<u64> {
        Some(self.sizes()?.iter().sum())
    }

    fn resume(&self) -> Resume {
        self.parts.iter().map(|p| p.resume()).max().unwrap_or(Resume::Seek)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let n = self.parts.len();
        let (states, begin) = match self.sizes() {
            _ if !at.inputs.is_empty() => (at.inputs.clone(), at.index),
            Some(sizes) => {
                let mut left = at.index;
                // Inputs before the current one have finished their pass. A position past the end
                // is the end of the last input.
                let mut input_state = |(i, &size)| {
                    if left >= size && i + 1 < n {
                        left -= size;
                        return State::at(at.epoch + 1, 0);
                    }
                    State::at(at.epoch, std::mem::take(&mut left))
                };
                (sizes.iter().enumerate().map(&mut input_state).collect(), at.index)
            }
            None => (vec![State::at(at.epoch, 0); n], 0),
        };
        if states.len() != n {
            let why = format!("the state has {} inputs, but the concatenation has {n}", states.len());
            return Err(Error::argument(why));
        }
        let inputs = InputReaders::open(&self.parts, seed, &states)?;
        let sized = self.size().is_some();
        replay::replay_to(Box::new(ConcatReader { inputs, sized, at: State::at(at.epoch, begin) }), at)
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        let Some(sizes) = self.sizes() else { return Ok(None) };
        let mut parts = Vec::new();
        for (i, (part, size)) in self.parts.iter().zip(sizes).enumerate() {
            let Some(indexed) = part.open_indexed(InputReaders::seed(seed, i))? else { return Ok(None) };
            parts.push((indexed, size));
        }
        Ok(Some(Arc::new(move |epoch, index| {
            let mut index = index;
            for (part, size) in &parts {
                if index < *size {
                    return part.get(epoch, index);
                }
                index -= size;
            }
            Err(Error::argument("an index past the end of a concatenation"))
        })))
    }
}

struct ConcatReader {
    inputs: InputReaders,
    sized: bool,
    at: State,
}

impl ConcatReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        for reader in &mut self.inputs.readers {
            while reader.state().epoch == self.at.epoch {
                if let Some(sample) = reader.read()? {
                    return Ok(Some(sample));
                }
            }
        }
        Ok(None)
    }
}

impl Reader for ConcatReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        if self.sized {
            self.at.with_inputs(self.inputs.states_if_needed())
        } else {
            self.at.with_inputs(self.inputs.states())
        }
    }
}
