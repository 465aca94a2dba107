//! A function of every sample, on several threads.

use super::work_source::{PendingSample, WorkSource};
use super::worker_pool::{PoolOptions, Task, WorkerPool, catch_panic};
use crate::adaptor::map::{Apply, Function};
use crate::cancellation::DEFAULT_TIMEOUT;
use crate::{DataFlow, Flow, IndexedReader, Map, Reader, Resume, Sample, SampleRng, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Every sample through a function, on several threads: [`DataFlow::map_parallel`].
///
/// It reads what [`DataFlow::map_random`] with the same function reads, byte for byte and in the same order. Where the
/// input's samples can be looked up, the threads also read them at the same time.
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

    /// How many samples may be made ahead, those being made among them; 32 unless told otherwise,
    /// or four for each worker if that is more.
    #[doc(alias = "buffer")]
    #[must_use]
    pub fn buffer_size(mut self, samples: usize) -> MapParallel {
        self.options.buffer_size = samples;
        self
    }

    /// Gives samples as they get ready. Every pass still has exactly its own. Such a reader cannot go on in the middle of
    /// a pass.
    #[must_use]
    pub fn unordered(mut self) -> MapParallel {
        self.options.keep_order = false;
        self
    }

    /// How long to wait for a sample before that is an error; 300 seconds unless told otherwise.
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
                "an unordered map_parallel cannot go on at sample {} of epoch {}",
                at.index, at.epoch
            );
            let what = "it does not know which samples those were: leave out unordered(), or begin a pass";
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

/// A task for each input.
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

/// Reads what a crew makes of its input, sample for sample.
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
