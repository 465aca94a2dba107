//! What a dataflow is.

use crate::adaptor::map::component;
use crate::adaptor::stack::Padding;
use crate::{
    Batch, BatchByShape, BatchRow, Cache, CacheOnDisk, ComponentSpec, Concat, Filter, FixedSize,
    IndexedReader, Map, MapBatch, MapParallel, Prefetch, Print, Repeat, RepeatEach, SampleRng, Seed, Shard,
    Shuffle, ShuffleWindow, SkipErrors, Speed, State, Take, Zip,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
#[cfg(doc)]
use tensorpack_tensor::ErrorKind;
use tensorpack_tensor::{HostTensor, Result};

/// One datapoint: its components, such as an image and a label. Text and files are `u8` tensors. Cloning shares the
/// elements.
#[doc(alias = "datapoint")]
pub type Sample = Vec<HostTensor>;

/// A dataflow as adaptors keep it.
pub type Flow = Arc<dyn DataFlow>;

/// Passes over samples. What it reads is a function of the seed and the position alone.
///
/// The methods that make one dataflow of another are like those of [`Iterator`]. Bad arguments are told when the result
/// is opened.
pub trait DataFlow: Send + Sync {
    /// How many samples every pass has, exactly; `None` where that is not known before they are read.
    #[doc(alias = "len")]
    fn size(&self) -> Option<u64>;

    /// What it takes to open anywhere but at the start of a pass.
    fn resume(&self) -> Resume;

    /// A reader that goes on at `at`.
    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>>;

    /// Samples by their place, if they can be had without reading others. One that has this and no size is endless.
    #[doc(alias = "lookup")]
    fn open_indexed(&self, _seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        Ok(None)
    }

    /// This dataflow as one of a list of any: for [`Concat`], [`Zip`] and mixtures.
    fn into_flow(self) -> Flow
    where
        Self: Sized + 'static,
    {
        Arc::new(self)
    }

    /// Every sample through a function.
    #[doc(alias = "MapData")]
    fn map(self, function: impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static) -> Map
    where
        Self: Sized + 'static,
    {
        Map::deterministic(self, function)
    }

    /// Every sample through a function that draws random numbers.
    fn map_random(
        self,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map
    where
        Self: Sized + 'static,
    {
        Map::random(self, function)
    }

    /// One component of every sample through a function.
    #[doc(alias = "MapDataComponent")]
    fn map_component(
        self,
        index: usize,
        function: impl Fn(HostTensor) -> Result<HostTensor> + Send + Sync + 'static,
    ) -> Map
    where
        Self: Sized + 'static,
    {
        self.map(move |mut sample| {
            let component = component(&mut sample, index)?;
            *component = function(std::mem::replace(component, HostTensor::scalar(0u8)))?;
            Ok(sample)
        })
    }

    /// These components of every sample, in this order.
    #[doc(alias = "SelectComponent")]
    fn select(self, components: impl Into<Vec<usize>>) -> Map
    where
        Self: Sized + 'static,
    {
        let components = components.into();
        self.map(move |mut sample| components.iter().map(|&i| component(&mut sample, i).cloned()).collect())
    }

    /// Every sample through a function, on `workers` threads. Reads what [`map_random`](DataFlow::map_random) would, with
    /// any number of them.
    #[doc(alias = "MultiThreadMapData")]
    fn map_parallel(
        self,
        workers: usize,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> MapParallel
    where
        Self: Sized + 'static,
    {
        MapParallel::new(self, workers, function)
    }

    /// Batches of `batch` samples with these components, which `function` writes into them, on `workers` threads.
    #[doc(alias = "MultiProcessMapAndBatchData")]
    fn map_batch(
        self,
        workers: usize,
        batch: usize,
        components: impl Into<Vec<ComponentSpec>>,
        function: impl Fn(Sample, &mut SampleRng, &mut BatchRow<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> MapBatch
    where
        Self: Sized + 'static,
    {
        MapBatch::new(self, workers, batch, components.into(), function)
    }

    /// Reads up to `buffer_size` samples ahead, on a thread of its own.
    #[doc(alias = "PrefetchData")]
    fn prefetch(self, buffer_size: usize) -> Prefetch
    where
        Self: Sized + 'static,
    {
        Prefetch::new(self, buffer_size)
    }

    /// Makes it an error if a sample takes longer than this. Reads one ahead, on a thread of its own.
    #[doc(alias = "deadline")]
    fn timeout(self, timeout: Duration) -> Prefetch
    where
        Self: Sized + 'static,
    {
        self.prefetch(1).timeout(timeout)
    }

    /// The samples for which `keep` is true.
    fn filter(self, keep: impl Fn(&Sample) -> Result<bool> + Send + Sync + 'static) -> Filter
    where
        Self: Sized + 'static,
    {
        self.filter_map(move |sample| Ok(keep(&sample)?.then_some(sample)))
    }

    /// Every sample through a function, without those for which it gives `None`.
    fn filter_map(self, function: impl Fn(Sample) -> Result<Option<Sample>> + Send + Sync + 'static) -> Filter
    where
        Self: Sized + 'static,
    {
        Filter::new(self, function)
    }

    /// Leaves out samples that fail, up to `limit` in a pass.
    fn skip_errors(self, limit: u64) -> SkipErrors
    where
        Self: Sized + 'static,
    {
        SkipErrors::new(self, limit)
    }

    /// `batch` samples as one, along a new first axis. What is left at the end of a pass is dropped, unless
    /// [`Batch::keep_remainder`].
    #[doc(alias = "BatchData")]
    fn batch(self, batch: usize) -> Batch
    where
        Self: Sized + 'static,
    {
        Batch::new(self, batch, Padding::None)
    }

    /// Like [`batch`](DataFlow::batch), but fills up smaller samples with `value`, at their ends, to the largest in the
    /// batch.
    fn batch_padded(self, batch: usize, value: f64) -> Batch
    where
        Self: Sized + 'static,
    {
        Batch::new(self, batch, Padding::Constant(value))
    }

    /// Batches of samples whose component `component` has the same shape.
    #[doc(alias = "BatchDataByShape")]
    fn batch_by_shape(self, batch: usize, component: usize) -> BatchByShape
    where
        Self: Sized + 'static,
    {
        BatchByShape::new(self, batch, component)
    }

    /// The samples of every pass in random order, a new one each time. Takes them from anywhere, and no memory.
    fn shuffle(self) -> Shuffle
    where
        Self: Sized + 'static,
    {
        Shuffle::new(self)
    }

    /// Windows of `window` consecutive samples, each in random order: for what can only be read in order.
    #[doc(alias = "LocallyShuffleData")]
    fn shuffle_window(self, window: usize) -> ShuffleWindow
    where
        Self: Sized + 'static,
    {
        ShuffleWindow::new(self, window)
    }

    /// Every `count`-th sample, from the `index`-th on: together the `count` shards read every sample once.
    fn shard(self, index: u64, count: u64) -> Shard
    where
        Self: Sized + 'static,
    {
        Shard::new(self, index, count)
    }

    /// At most the first `count` samples of every pass.
    fn take(self, count: u64) -> Take
    where
        Self: Sized + 'static,
    {
        Take::new(self, count)
    }

    /// Passes of exactly `size` samples. Each goes on where the last one stopped, into the input's next pass if need be.
    #[doc(alias = "FixedSizeData")]
    fn fixed_size(self, size: u64) -> FixedSize
    where
        Self: Sized + 'static,
    {
        FixedSize::new(self, size)
    }

    /// `times` passes as one.
    #[doc(alias = "RepeatedData")]
    fn repeat(self, times: u64) -> Repeat
    where
        Self: Sized + 'static,
    {
        Repeat::new(self, Some(times))
    }

    /// Pass after pass as one that never ends.
    fn repeat_forever(self) -> Repeat
    where
        Self: Sized + 'static,
    {
        Repeat::new(self, None)
    }

    /// Every sample `times` times, one after the other.
    #[doc(alias = "RepeatedDataPoint")]
    fn repeat_each(self, times: u64) -> RepeatEach
    where
        Self: Sized + 'static,
    {
        RepeatEach::new(self, times)
    }

    /// First the samples of this, then those of `next`; [`Concat`] takes any number.
    #[doc(alias = "ConcatData")]
    fn concat(self, next: impl DataFlow + 'static) -> Concat
    where
        Self: Sized + 'static,
    {
        Concat::new([self.into_flow(), next.into_flow()])
    }

    /// The components of this and of `other` as one sample; [`Zip`] takes any number.
    #[doc(alias = "JoinData")]
    fn zip(self, other: impl DataFlow + 'static) -> Zip
    where
        Self: Sized + 'static,
    {
        Zip::new([self.into_flow(), other.into_flow()])
    }

    /// Keeps the first pass in memory, and reads it again in every pass.
    #[doc(alias = "CacheData")]
    fn cache(self) -> Cache
    where
        Self: Sized + 'static,
    {
        Cache::new(self)
    }

    /// Keeps the first pass in a file, which is written when it is first opened, and reads it again in every pass.
    fn cache_on_disk(self, path: impl Into<PathBuf>) -> CacheOnDisk
    where
        Self: Sized + 'static,
    {
        CacheOnDisk::new(self, path.into())
    }

    /// Prints the first `samples` that are read.
    #[doc(alias = "PrintData")]
    fn print(self, samples: u64) -> Print
    where
        Self: Sized + 'static,
    {
        Print::new(self, samples)
    }

    /// Reads `samples` samples, and prints how long it took.
    #[doc(alias = "TestDataSpeed")]
    fn test_speed(&self, samples: u64) -> Result<Speed>
    where
        Self: Sized,
    {
        let speed = crate::adaptor::test_speed::measure(self, samples)?;
        println!("{speed}");
        Ok(speed)
    }
}

/// Reads a dataflow, pass after pass.
pub trait Reader: Send {
    /// The next sample, or `None` where a pass ends; reading on begins the next pass.
    ///
    /// Every read moves on by one. After an error the reader stands behind the sample that failed, and may be read on;
    /// only an error of kind [`ErrorKind::Deadline`] leaves it where it was, and reading again goes on waiting.
    fn read(&mut self) -> Result<Option<Sample>>;

    /// Where the reader stands: a dataflow opened there goes on with what would be read next.
    fn state(&self) -> State;
}

/// What it takes to open a dataflow in the middle of a pass, at a state that a reader of it told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resume {
    /// The same time as at its start.
    Seek,
    /// As long as reading all that came before.
    Replay,
    /// It cannot be done: what was read once is gone.
    Never,
}

impl DataFlow for Flow {
    fn size(&self) -> Option<u64> {
        (**self).size()
    }

    fn resume(&self) -> Resume {
        (**self).resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        (**self).open(seed, at)
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        (**self).open_indexed(seed)
    }

    fn into_flow(self) -> Flow {
        self
    }
}
