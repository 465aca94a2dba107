//! The batches that this process takes from a dataflow that several processes share.

use super::prefetch::Share;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use tensorpack_tensor::{Error, Result};

/// The batches of this process, of a dataflow with random access: those of other processes are not
/// read. It is one endless pass.
#[derive(Clone)]
pub(super) struct OwnBatches {
    indexed: Arc<dyn IndexedReader>,
    /// The number of batches in a pass over the dataflow.
    size: u64,
    /// The number of batches of all processes before the first one.
    start: u64,
    share: Share,
}

impl OwnBatches {
    /// Returns the batches of this process from `at` on; `None` if there are no other processes, or
    /// if the dataflow can be read only in order.
    pub(super) fn open(flow: &Flow, seed: u64, at: &State, share: Share) -> Result<Option<OwnBatches>> {
        let (Some(size @ 1..), true) = (flow.size(), share.is_shared()) else { return Ok(None) };
        let indexed = flow.open_indexed(Seed::new(seed))?;
        let start = at.epoch.saturating_mul(size).saturating_add(at.index);
        Ok(indexed.map(|indexed| OwnBatches { indexed, size, start, share }))
    }

    /// Returns a reader that reads ahead on as many threads as this process has cores.
    pub(super) fn reader(&self) -> Result<Box<dyn Reader>> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let flow = self.clone().map_parallel(workers, |sample, _| Ok(sample)).buffer_size(2 * workers);
        flow.open(Seed::new(0), &State::start())
    }

    /// Returns the position, among the batches of all processes, of batch `index` of this one.
    fn global_index(&self, index: u64) -> u64 {
        let (towers, total) = (self.share.towers as u64, self.share.total() as u64);
        let in_step = self.share.others.before as u64 + index % towers;
        self.start.saturating_add((index / towers).saturating_mul(total)).saturating_add(in_step)
    }

    /// Returns the position after batch `index` of this process and, if it is the last of its step,
    /// those of the others after it.
    pub(super) fn state_after(&self, index: u64) -> State {
        let is_last = (index + 1).is_multiple_of(self.share.towers as u64);
        let after = if is_last { self.share.others.after as u64 } else { 0 };
        let next = self.global_index(index).saturating_add(1 + after);
        State::at(next / self.size, next % self.size)
    }
}

impl DataFlow for OwnBatches {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, _: Seed, _: &State) -> Result<Box<dyn Reader>> {
        Err(Error::argument("the batches of a process are read through their index"))
    }

    fn open_indexed(&self, _: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        let own = self.clone();
        let get = move |_: u64, index: u64| -> Result<Sample> {
            let position = own.global_index(index);
            own.indexed.get(position / own.size, position % own.size)
        };
        Ok(Some(Arc::new(get)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::OtherTowers;
    use super::*;
    use tensorpack_dataflow::FromFn;
    use tensorpack_tensor::HostTensor;

    /// All processes together read every batch once, in order, across the ends of passes.
    #[test]
    fn processes_divide_the_batches() {
        let flow: Flow = Arc::new(FromFn::new(7, |i| Ok(vec![HostTensor::scalar(i as i64)])));
        for (ranks, towers) in [(2, 1), (2, 3), (4, 1), (3, 2)] {
            let mut steps: Vec<Vec<i64>> = vec![Vec::new(); 5];
            for rank in 0..ranks {
                let others = OtherTowers { before: rank * towers, after: (ranks - 1 - rank) * towers };
                let share = Share { others, towers };
                let own = OwnBatches::open(&flow, 1, &State::at(2, 3), share).unwrap().unwrap();
                let mut reader = own.reader().unwrap();
                for index in 0..5 * towers {
                    let sample = reader.read().unwrap().unwrap();
                    steps[index / towers].push(sample[0].to_scalar().unwrap() as i64);
                }
                let read = 2 * 7 + 3 + 5 * ranks * towers;
                let after = own.state_after(5 * towers as u64 - 1);
                assert_eq!((after.epoch, after.index), ((read / 7) as u64, (read % 7) as u64));
            }
            let want: Vec<i64> = (0..5 * ranks * towers).map(|i| (3 + i as i64) % 7).collect();
            assert_eq!(steps.concat(), want, "{ranks} x {towers}");
        }
    }
}
