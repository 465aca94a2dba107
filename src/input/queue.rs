//! Prefetched input from a dataflow.

use super::batch::Feeds;
use super::last_batch::{LastBatch, checksum};
use super::prefetch::{Prefetcher, ReadAhead, Share};
use super::{InputSource, OtherTowers, Start, state};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Resume, Seed, State};
use tensorpack_tensor::{Error, HostTensor, Result};

/// An input source that prefetches batches from a dataflow on a background thread while the model
/// computes: up to 50 batches and 256 MiB, whichever is less, but at least two batches. For devices
/// with their own memory, a second thread transfers the next batches.
#[doc(alias = "StagingInput")]
pub struct QueueInput {
    flow: Flow,
    ahead: ReadAhead,
    feeds: Feeds,
    prefetcher: Option<Prefetcher>,
    /// The position after the last batch taken.
    taken: State,
    /// The position before it; `None` if none was taken since the start.
    before: Option<State>,
    /// The last batch of the run that is resumed.
    resumed: Option<LastBatch>,
    /// Moving average of the queue size, with a decay of one half.
    queue_size: f64,
}

/// The largest number of batches to prefetch. The queue has a slot of about 100 bytes for each.
const MAX_BATCHES: usize = 1 << 16;

/// The default limit on prefetched bytes: 256 MiB.
const MAX_BYTES: usize = 256 << 20;

impl QueueInput {
    /// Creates an input source that prefetches up to 50 batches and 256 MiB.
    pub fn new(flow: impl DataFlow + 'static) -> QueueInput {
        QueueInput::from_flow(Arc::new(flow)).capacity(50)
    }

    /// Creates an input source that reads on demand.
    pub(super) fn from_flow(flow: Flow) -> QueueInput {
        QueueInput {
            flow,
            ahead: ReadAhead { samples: 0, bytes: MAX_BYTES },
            feeds: Feeds::default(),
            prefetcher: None,
            taken: State::start(),
            before: None,
            resumed: None,
            queue_size: 0.0,
        }
    }

    /// Sets the number of batches to prefetch (default: 50). A number outside of 1 to 65,536 counts
    /// as the nearest one inside. Fewer batches are prefetched if they would take more than
    /// [`max_bytes`](QueueInput::max_bytes).
    #[must_use]
    pub fn capacity(self, batches: usize) -> QueueInput {
        QueueInput { ahead: ReadAhead { samples: batches.clamp(1, MAX_BATCHES), ..self.ahead }, ..self }
    }

    /// Sets the number of bytes to prefetch (default: 256 MiB). Two batches are prefetched in any
    /// case, so that reading overlaps with computing. The size of a batch is known only after it
    /// was read, so a batch that is larger than the one before may exceed the limit.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> QueueInput {
        QueueInput { ahead: ReadAhead { bytes, ..self.ahead }, ..self }
    }
}

impl InputSource for QueueInput {
    fn size(&self) -> Option<u64> {
        self.flow.size()
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        Ok(self.feeds.tower(t, signature))
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        // A dataflow that cannot resume restarts; `cannot_resume` reports it.
        let (at, last) = match self.flow.resume() {
            Resume::Never => (State::start(), None),
            _ => (state::from_json(start.at)?, LastBatch::of(start.at)?),
        };
        let share = Share { others: start.others, towers: self.feeds.towers() };
        let open = |at: &State, share: Share| {
            Prefetcher::start(&self.flow, start.seed, at.clone(), self.ahead, share, start.interrupt)
        };
        let prefetcher = match &last {
            Some(last) => {
                let mut prefetcher = open(&last.before, Share::default())?;
                compare(last, &prefetcher.take()?);
                // Data of another size may be divided into other passes, and other processes take
                // batches in between.
                let goes_on = *prefetcher.state() == at && share.others == OtherTowers::default();
                if goes_on { prefetcher } else { open(&at, share)? }
            }
            None => open(&at, share)?,
        };
        (self.taken, self.before, self.resumed) = (at, None, last);
        // An on-demand source has nothing to transfer ahead of time.
        let staging = start.staging.filter(|_| self.ahead.samples > 0);
        self.prefetcher = Some(match staging {
            Some(staging) => prefetcher.staged(staging, self.feeds.towers(), start.steps_per_launch)?,
            None => prefetcher,
        });
        Ok(())
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        let prefetcher =
            self.prefetcher.as_mut().ok_or_else(|| Error::argument("the input source was not started"))?;
        self.queue_size = 0.5 * (self.queue_size + prefetcher.ready() as f64);
        let towers = self.feeds.towers();
        let mut before_last_tower = None;
        for tower in 0..towers {
            if tower > 0 && tower + 1 == towers {
                before_last_tower = Some(prefetcher.state().clone());
            }
            let sample = prefetcher.take()?;
            self.feeds.fill(tower, sample).map_err(|e| {
                let State { epoch, index, .. } = *prefetcher.state();
                e.within(format!("sample {} of epoch {epoch}", index.saturating_sub(1)))
            })?;
        }
        let taken = std::mem::replace(&mut self.taken, prefetcher.state().clone());
        self.before = Some(before_last_tower.unwrap_or(taken));
        Ok(self.feeds.feeds())
    }

    fn state(&self) -> Value {
        let taken = self
            .before
            .clone()
            .filter(|_| self.flow.resume() != Resume::Never)
            .map(|before| LastBatch { before, crc32c: checksum(self.feeds.last_tower()) });
        match taken.as_ref().or(self.resumed.as_ref()) {
            Some(last) => last.append_to(&self.taken),
            None => state::to_json(&self.taken),
        }
    }

    fn checksum(&self, seed: u64) -> Result<Option<u32>> {
        if self.flow.resume() == Resume::Never {
            return Ok(None);
        }
        let first = self.flow.open(Seed::new(seed), &State::start())?.read()?;
        Ok(first.map(|sample| checksum(&sample)))
    }

    fn cannot_resume(&self) -> Option<String> {
        let never = self.flow.resume() == Resume::Never;
        never.then(|| "the dataflow can be read only once and restarts from the beginning".to_string())
    }

    fn report(&self) -> Vec<(String, f64)> {
        if self.ahead.samples == 0 {
            Vec::new()
        } else {
            vec![("QueueInput/queue_size".into(), self.queue_size)]
        }
    }

    fn stop(&mut self) {
        self.prefetcher = None;
    }
}

/// Warns if the batch that a resumed run reads again is not the one that was read before.
fn compare(last: &LastBatch, batch: &[HostTensor]) {
    if checksum(batch) != last.crc32c {
        let State { epoch, index, .. } = last.before;
        log::warn!(
            "resuming with changed data: sample {index} of epoch {epoch} is not what this run has read: the files or \
             the code of the dataflow changed, or its samples depend on more than seed and position; use --fresh \
             to start over"
        );
    }
}
