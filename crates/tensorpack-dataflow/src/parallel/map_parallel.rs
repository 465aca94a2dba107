//! Parallel map over samples.

use super::work_source::{PendingSample, WorkSource};
use super::worker_pool::{PoolOptions, Task, WorkerPool, catch_panic};
use crate::adaptor::map::{Apply, Function};
use crate::cancellation::DEFAULT_TIMEOUT;
use crate::{DataFlow, Flow, IndexedReader, Map, Reader, Resume, Sample, SampleRng, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Applies a function to every sample on several threads: [`DataFlow::map_parallel`].
///
/// Reads the same bytes in the same order as [`DataFlow::map_random`] with the same function. If
/// the input supports random access, the workers also read it concurrently.
#[derive(Clone)]
#[doc(alias = "MultiThreadMapData")]
#[doc(alias = "MultiProcessMapData")]
pub struct MapParallel {
    inner: Flow,
    function: Function,
    options: PoolOptions,
}

impl MapParallel {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        workers: usize,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> MapParallel {
        let buffer_size = workers.saturating_mul(4).max(32);
        let options = PoolOptions {
            stage: "map_parallel",
            workers,
            buffer_size,
            keep_order: true,
            timeout: DEFAULT_TIMEOUT,
        };
        MapParallel { inner: Arc::new(inner), function: Arc::new(function), options }
    }

    /// Sets the maximum number of samples computed ahead, including those in progress. Defaults to
    /// 32, or four per worker if that is more.
    #[doc(alias = "buffer")]
    #[must_use]
    pub fn buffer_size(mut self, samples: usize) -> MapParallel {
        self.options.buffer_size = samples;
        self
    }

    /// Returns samples as they become ready. Every pass still consists of exactly its own samples.
    /// An unordered reader cannot resume in the middle of a pass.
    #[must_use]
    pub fn unordered(mut self) -> MapParallel {
        self.options.keep_order = false;
        self
    }

    /// Sets how long to wait for a sample before returning an error. Defaults to 300 seconds.
    #[doc(alias = "deadline")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> MapParallel {
        self.options.timeout = timeout;
        self
    }

    fn sequential(&self) -> Map {
        Map::from_shared(&self.inner, &self.function)
    }
}

impl DataFlow for MapParallel {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        if self.options.keep_order { self.inner.resume() } else { Resume::Never }
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        if !self.options.keep_order && at.index > 0 {
            let why = format!(
                "an unordered map_parallel cannot resume at sample {} of epoch {}",
                at.index, at.epoch
            );
            let what = "it does not record which samples were read; remove unordered(), or resume at the start of a pass";
            return Err(Error::new(ErrorKind::Unsupported, why).note(what));
        }
        let source = WorkSource::open(&self.inner, seed.derive("input"), at)?;
        let apply = Apply::new(&self.function, seed);
        let work = move |pending: PendingSample| {
            let (epoch, index) = (pending.epoch, pending.index);
            apply.call(pending.sample()?, epoch, index)
        };
        let pool = WorkerPool::start(
            &self.options,
            source.state(),
            per_sample_tasks(source, self.options.stage),
            work,
        )?;
        Ok(Box::new(ParallelReader {
            pool,
            at: State::at(at.epoch, at.index),
            keep_order: self.options.keep_order,
        }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        if self.options.keep_order { self.sequential().open_indexed(seed) } else { Ok(None) }
    }
}

/// Creates one task per input sample.
pub(super) fn per_sample_tasks(
    mut source: WorkSource,
    stage: &'static str,
) -> impl FnMut() -> Task<PendingSample> {
    move || {
        let State { epoch, index, .. } = source.state();
        let work = catch_panic(stage, epoch, index, || source.next());
        Task { work, state: source.state(), epoch, index }
    }
}

/// Reads the results of a [`WorkerPool`].
pub(super) struct ParallelReader {
    pub(super) pool: WorkerPool,
    pub(super) at: State,
    pub(super) keep_order: bool,
}

impl Reader for ParallelReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.pool.read();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        if self.keep_order { self.pool.state() } else { self.at.clone() }
    }
}
