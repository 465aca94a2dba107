//! Reading of a dataflow for towers that run concurrently.

use tensorpack_dataflow::{DataFlow, Reader, Sample, Seed, State};
use tensorpack_tensor::{Error, Result};

/// One epoch of a dataflow of batches, read in groups of one batch per tower. The last group may be
/// smaller.
pub(crate) struct BatchGroups {
    reader: Box<dyn Reader>,
    towers: usize,
    /// The index of the first batch of the last group, and of the batch to read next.
    first: u64,
    next: u64,
    /// Whether the epoch has ended. Reading further would start the next one.
    ended: bool,
}

impl BatchGroups {
    /// Opens the dataflow for this many towers.
    pub(crate) fn open(flow: &dyn DataFlow, seed: Seed, towers: usize) -> Result<BatchGroups> {
        let reader = flow.open(seed, &State::start())?;
        Ok(BatchGroups { reader, towers, first: 0, next: 0, ended: false })
    }

    /// Reads the next group, with at most `limit` batches read in total. Returns an empty group at
    /// the end.
    pub(crate) fn read(&mut self, limit: u64) -> Result<Vec<Sample>> {
        let mut group = Vec::new();
        self.first = self.next;
        while !self.ended && group.len() < self.towers && self.next < limit {
            match self.reader.read()? {
                Some(batch) => group.push(batch),
                None => self.ended = true,
            }
            self.next = self.first + group.len() as u64;
        }
        Ok(group)
    }

    /// Adds the batch numbers of the last group to an error.
    pub(crate) fn name(&self, e: Error) -> Error {
        match self.next - self.first {
            1 => e.within(format!("batch {}", self.first)),
            _ => e.within(format!("batches {} to {}", self.first, self.next.saturating_sub(1))),
        }
    }
}
