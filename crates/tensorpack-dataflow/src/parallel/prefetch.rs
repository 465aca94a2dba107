//! Prefetching on a background thread.

use super::map_parallel::{ParallelReader, per_sample_tasks};
use super::work_source::{PendingSample, WorkSource};
use super::worker_pool::{PoolOptions, WorkerPool};
use crate::cancellation::DEFAULT_TIMEOUT;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::Result;

/// Reads its input ahead on a background thread: [`DataFlow::prefetch`], [`DataFlow::timeout`].
#[derive(Clone)]
#[doc(alias = "PrefetchData")]
#[doc(alias = "MultiThreadRunner")]
#[doc(alias = "MultiProcessRunner")]
pub struct Prefetch {
    inner: Flow,
    options: PoolOptions,
}

impl Prefetch {
    pub(crate) fn new(inner: impl DataFlow + 'static, buffer_size: usize) -> Prefetch {
        let options = PoolOptions {
            stage: "prefetch",
            workers: 1,
            buffer_size,
            keep_order: true,
            timeout: DEFAULT_TIMEOUT,
        };
        Prefetch { inner: Arc::new(inner), options }
    }

    /// Sets how long to wait for a sample before returning an error. Defaults to 300 seconds.
    #[doc(alias = "deadline")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Prefetch {
        self.options.timeout = timeout;
        self
    }
}

impl DataFlow for Prefetch {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        // Sequential even if the input supports random access: files are fastest in order.
        let source = WorkSource::Sequential(DataFlow::open(&self.inner, seed, at)?);
        let pool = WorkerPool::start(
            &self.options,
            source.state(),
            per_sample_tasks(source, self.options.stage),
            PendingSample::sample,
        )?;
        Ok(Box::new(ParallelReader { pool, at: State::at(at.epoch, at.index), keep_order: true }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.inner.open_indexed(seed)
    }
}
