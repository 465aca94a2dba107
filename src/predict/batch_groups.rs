//! A dataflow, read for towers that run at the same time.

use tensorpack_dataflow::{DataFlow, Reader, Sample, Seed, State};
use tensorpack_tensor::{Error, Result};

/// One pass over a dataflow of batches, a group of them at a time: one for each tower, fewer where the pass ends.
pub(crate) struct BatchGroups {
    reader: Box<dyn Reader>,
    towers: usize,
    /// The number of the first batch of the last group, and of the batch to be read next.
    first: u64,
    next: u64,
    /// Reading on would begin the next pass.
    ended: bool,
}

impl BatchGroups {
    pub(crate) fn open(flow: &dyn DataFlow, seed: Seed, towers: usize) -> Result<BatchGroups> {
        let reader = flow.open(seed, &State::start())?;
        Ok(BatchGroups { reader, towers, first: 0, next: 0, ended: false })
    }

    /// The next group, such that `most` batches are read in all; empty when there is nothing more to read.
    pub(crate) fn read(&mut self, most: u64) -> Result<Vec<Sample>> {
        let mut group = Vec::new();
        self.first = self.next;
        while !self.ended && group.len() < self.towers && self.next < most {
            match self.reader.read()? {
                Some(batch) => group.push(batch),
                None => self.ended = true,
            }
            self.next = self.first + group.len() as u64;
        }
        Ok(group)
    }

    /// Says of an error that it came with the last group.
    pub(crate) fn name(&self, e: Error) -> Error {
        match self.next - self.first {
            1 => e.within(format!("batch {}", self.first)),
            _ => e.within(format!("batches {} to {}", self.first, self.next.saturating_sub(1))),
        }
    }
}
