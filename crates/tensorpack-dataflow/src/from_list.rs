//! Samples that are in memory.

use crate::{DataFlow, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// The samples of a list, in its order.
#[derive(Clone, Debug)]
#[doc(alias = "DataFromList")]
pub struct FromList {
    samples: Arc<[Sample]>,
}

impl FromList {
    /// These samples.
    pub fn new(samples: Vec<Sample>) -> FromList {
        FromList { samples: samples.into() }
    }
}

impl DataFlow for FromList {
    fn size(&self) -> Option<u64> {
        Some(self.samples.len() as u64)
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, _: Seed, at: &State) -> Result<Box<dyn Reader>> {
        Ok(Box::new(ListReader { samples: self.samples.clone(), epoch: at.epoch, index: at.index }))
    }
}

struct ListReader {
    samples: Arc<[Sample]>,
    epoch: u64,
    index: u64,
}

impl Reader for ListReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let sample = self.samples.get(self.index as usize).cloned();
        match sample {
            Some(_) => self.index += 1,
            None => (self.epoch, self.index) = (self.epoch + 1, 0),
        }
        Ok(sample)
    }

    fn state(&self) -> State {
        State::at(self.epoch, self.index)
    }
}
