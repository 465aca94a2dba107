//! Parallel map that writes samples directly into batches.

use super::work_source::{PendingSample, WorkSource};
use super::worker_pool::{PoolOptions, Task, WorkerPool, catch_panic};
use crate::adaptor::batch_builder::{self, BatchBuilder};
use crate::adaptor::map::component;
use crate::cancellation::DEFAULT_TIMEOUT;
use crate::indexed_reader::sample_error;
use crate::{ComponentSpec, DataFlow, Flow, Reader, Resume, Sample, SampleRng, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Element, HostTensor, Result};

type Function = Arc<dyn Fn(Sample, &mut SampleRng, &mut BatchRow<'_>) -> Result<()> + Send + Sync>;

/// Batches built by several threads: [`DataFlow::map_batch`].
///
/// Equivalent to `map_random(..).batch(..)` without copying samples: each is written in place in
/// its batch. Each thread builds a whole batch, so no two threads write to the same one.
#[derive(Clone)]
#[doc(alias = "MultiProcessMapAndBatchData")]
pub struct MapBatch {
    inner: Flow,
    batch: usize,
    components: Arc<[ComponentSpec]>,
    function: Function,
    keep_remainder: bool,
    options: PoolOptions,
}

impl MapBatch {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        workers: usize,
        batch: usize,
        components: Vec<ComponentSpec>,
        function: impl Fn(Sample, &mut SampleRng, &mut BatchRow<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> MapBatch {
        let buffer_size = workers.saturating_add(1);
        MapBatch {
            inner: Arc::new(inner),
            batch,
            components: components.into(),
            function: Arc::new(function),
            keep_remainder: false,
            options: PoolOptions {
                stage: "map_batch",
                workers,
                buffer_size,
                keep_order: true,
                timeout: DEFAULT_TIMEOUT,
            },
        }
    }

    /// Keeps the remainder at the end of a pass as a smaller batch instead of dropping it.
    #[must_use]
    pub fn keep_remainder(self) -> MapBatch {
        MapBatch { keep_remainder: true, ..self }
    }

    /// Sets the maximum number of batches built ahead, including those in progress. Defaults to the
    /// number of workers plus one.
    #[doc(alias = "buffer")]
    #[must_use]
    pub fn buffer_size(mut self, batches: usize) -> MapBatch {
        self.options.buffer_size = batches;
        self
    }

    /// Sets how long to wait for a batch before returning an error. Defaults to 300 seconds.
    #[doc(alias = "deadline")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> MapBatch {
        self.options.timeout = timeout;
        self
    }
}

/// The row of a batch that one sample is written to.
#[doc(alias = "Slot")]
pub struct BatchRow<'a> {
    batch: &'a mut [HostTensor],
    components: &'a [ComponentSpec],
    row: usize,
}

impl BatchRow<'_> {
    /// Returns the elements of component `index` in row-major order, initialized to zero.
    pub fn component<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        let tensor = component(self.batch, index)?;
        let n = self.components[index].elements();
        let rows = tensor.as_mut_slice::<T>().map_err(|e| e.within(format!("component {index}")))?;
        Ok(&mut rows[self.row * n..][..n])
    }
}

impl DataFlow for MapBatch {
    fn size(&self) -> Option<u64> {
        Some(batch_builder::num_batches(self.inner.size()?, self.batch, self.keep_remainder))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let stage = self.options.stage;
        batch_builder::check_batch_size(stage, self.inner.size(), self.batch, self.keep_remainder)?;
        let inner_at = at.input_or(at.epoch, at.index.saturating_mul(self.batch as u64));
        let mut source = WorkSource::open(&self.inner, seed.derive("input"), &inner_at)?;
        let mut builder = BatchBuilder::new(self.batch, self.keep_remainder, inner_at.epoch > at.epoch);
        let begin = source.state();
        let mut state = begin.clone();
        let next = move || {
            let State { epoch, index, .. } = source.state();
            let work = catch_panic(stage, epoch, index, || builder.next(|_| source.next()));
            if !builder.is_partial() {
                state = source.state();
            }
            Task { work, state: state.clone(), epoch, index }
        };
        let (components, function, seed) =
            (self.components.clone(), self.function.clone(), seed.derive("map"));
        let work = move |pending: Vec<PendingSample>| {
            let rows = pending.len();
            let mut batch: Sample = components.iter().map(|c| c.batch(rows)).collect::<Result<_>>()?;
            for (row, pending) in pending.into_iter().enumerate() {
                let (epoch, index) = (pending.epoch, pending.index);
                let sample = pending.sample()?;
                let mut batch_row = BatchRow { batch: &mut batch, components: &components, row };
                catch_panic(stage, epoch, index, || {
                    function(sample, &mut seed.rng(epoch, index), &mut batch_row)
                        .map_err(|e| sample_error(e, epoch, index))
                })?;
            }
            Ok(batch)
        };
        let pool = WorkerPool::start(&self.options, begin, next, work)?;
        Ok(Box::new(MapBatchReader { pool, at: State::at(at.epoch, at.index) }))
    }
}

struct MapBatchReader {
    pool: WorkerPool,
    at: State,
}

impl Reader for MapBatchReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.pool.read();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_nested_input(self.pool.state())
    }
}
