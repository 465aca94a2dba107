//! The [`DataFlow`] and [`Reader`] traits.

use crate::adaptor::map::component;
use crate::adaptor::stack::Padding;
use crate::{
    Batch, BatchByShape, BatchRow, Cache, CacheOnDisk, ComponentSpec, Concat, Filter, FixedSize,
    IndexedReader, Map, MapBatch, MapParallel, Prefetch, Print, Repeat, RepeatEach, SampleRng, Seed, Shard,
    Shuffle, ShuffleWindow, SkipErrors, Speed, State, Take, Zip,
};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
#[cfg(doc)]
use tensorpack_tensor::ErrorKind;
use tensorpack_tensor::{HostTensor, Result};

/// One sample (datapoint): a list of components, such as an image and a label.
///
/// Text and file contents are `u8` tensors. Clones share the elements.
#[doc(alias = "datapoint")]
pub type Sample = Vec<HostTensor>;

/// A shared dataflow of any type.
pub type Flow = Arc<dyn DataFlow>;

/// A sequence of passes (epochs) over samples.
///
/// Samples are a function of the seed and the position only. Adaptor methods work like
/// those of [`Iterator`]; invalid arguments are reported by [`open`](DataFlow::open).
pub trait DataFlow: Send + Sync {
    /// Returns the exact number of samples in every pass, or `None` if it is unknown before
    /// reading.
    #[doc(alias = "len")]
    fn size(&self) -> Option<u64>;

    /// Returns what it costs to open this dataflow in the middle of a pass.
    fn resume(&self) -> Resume;

    /// Opens a reader that continues at `at`.
    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>>;

    /// Opens random access to the samples, or returns `None` if they can only be read in order.
    ///
    /// A dataflow that supports this but has no size is infinite.
    #[doc(alias = "lookup")]
    fn open_indexed(&self, _seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        Ok(None)
    }

    /// Converts this dataflow to a [`Flow`], the element type of [`Concat`], [`Zip`] and mixtures.
    fn into_flow(self) -> Flow
    where
        Self: Sized + 'static,
    {
        Arc::new(self)
    }

    /// Applies a function to every sample.
    #[doc(alias = "MapData")]
    fn map(self, function: impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static) -> Map
    where
        Self: Sized + 'static,
    {
        Map::deterministic(self, function)
    }

    /// Applies a function that uses random numbers to every sample.
    fn map_random(
        self,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map
    where
        Self: Sized + 'static,
    {
        Map::random(self, function)
    }

    /// Applies a function to one component of every sample.
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

    /// Keeps the listed components of every sample, in this order.
    #[doc(alias = "SelectComponent")]
    fn select(self, components: impl Into<Vec<usize>>) -> Map
    where
        Self: Sized + 'static,
    {
        let components = components.into();
        self.map(move |mut sample| components.iter().map(|&i| component(&mut sample, i).cloned()).collect())
    }

    /// Applies a function to every sample on `workers` threads. Reads the same samples as
    /// [`map_random`](DataFlow::map_random), for any number of workers.
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

    /// Builds batches of `batch` samples on `workers` threads. `function` writes each sample
    /// directly into its row of the batch, whose layout `components` describes.
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

    /// Reads up to `buffer_size` samples ahead on a background thread.
    #[doc(alias = "PrefetchData")]
    fn prefetch(self, buffer_size: usize) -> Prefetch
    where
        Self: Sized + 'static,
    {
        Prefetch::new(self, buffer_size)
    }

    /// Returns an error if a sample takes longer than `timeout`. Reads one sample ahead on a
    /// background thread.
    #[doc(alias = "deadline")]
    fn timeout(self, timeout: Duration) -> Prefetch
    where
        Self: Sized + 'static,
    {
        self.prefetch(1).timeout(timeout)
    }

    /// Keeps the samples for which `keep` returns true.
    fn filter(self, keep: impl Fn(&Sample) -> Result<bool> + Send + Sync + 'static) -> Filter
    where
        Self: Sized + 'static,
    {
        self.filter_map(move |sample| Ok(keep(&sample)?.then_some(sample)))
    }

    /// Applies a function to every sample and drops those for which it returns `None`.
    fn filter_map(self, function: impl Fn(Sample) -> Result<Option<Sample>> + Send + Sync + 'static) -> Filter
    where
        Self: Sized + 'static,
    {
        Filter::new(self, function)
    }

    /// Skips samples that fail, up to `limit` per pass.
    fn skip_errors(self, limit: u64) -> SkipErrors
    where
        Self: Sized + 'static,
    {
        SkipErrors::new(self, limit)
    }

    /// Stacks `batch` samples along a new first axis. The remainder at the end of a pass is dropped
    /// unless [`Batch::keep_remainder`] is called.
    #[doc(alias = "BatchData")]
    fn batch(self, batch: usize) -> Batch
    where
        Self: Sized + 'static,
    {
        Batch::new(self, batch, Padding::None)
    }

    /// Like [`batch`](DataFlow::batch), but pads smaller samples with `value` at the end of each
    /// axis to the largest size in the batch.
    fn batch_padded(self, batch: usize, value: f64) -> Batch
    where
        Self: Sized + 'static,
    {
        Batch::new(self, batch, Padding::Constant(value))
    }

    /// Batches samples whose component `component` has the same shape.
    #[doc(alias = "BatchDataByShape")]
    fn batch_by_shape(self, batch: usize, component: usize) -> BatchByShape
    where
        Self: Sized + 'static,
    {
        BatchByShape::new(self, batch, component)
    }

    /// Visits the samples of every pass in a new random order. Needs random access to its input and
    /// no buffer.
    fn shuffle(self) -> Shuffle
    where
        Self: Sized + 'static,
    {
        Shuffle::new(self)
    }

    /// Shuffles windows of `window` consecutive samples, for inputs that can only be read in order.
    #[doc(alias = "LocallyShuffleData")]
    fn shuffle_window(self, window: usize) -> ShuffleWindow
    where
        Self: Sized + 'static,
    {
        ShuffleWindow::new(self, window)
    }

    /// Reads every `count`-th sample starting at `index`. Together the `count` shards read every
    /// sample once. An `index` that is not below `count` is an error when reading starts.
    #[track_caller]
    fn shard(self, index: u64, count: u64) -> Shard
    where
        Self: Sized + 'static,
    {
        Shard::new(self, index, count)
    }

    /// Reads at most the first `count` samples of every pass.
    fn take(self, count: u64) -> Take
    where
        Self: Sized + 'static,
    {
        Take::new(self, count)
    }

    /// Makes every pass exactly `size` samples long. Each pass continues where the previous one
    /// stopped, wrapping into the input's next pass.
    #[doc(alias = "FixedSizeData")]
    fn fixed_size(self, size: u64) -> FixedSize
    where
        Self: Sized + 'static,
    {
        FixedSize::new(self, size)
    }

    /// Concatenates `times` passes into one.
    #[doc(alias = "RepeatedData")]
    fn repeat(self, times: u64) -> Repeat
    where
        Self: Sized + 'static,
    {
        Repeat::new(self, Some(times))
    }

    /// Concatenates all passes into one infinite pass.
    fn repeat_forever(self) -> Repeat
    where
        Self: Sized + 'static,
    {
        Repeat::new(self, None)
    }

    /// Repeats every sample `times` times in a row.
    #[doc(alias = "RepeatedDataPoint")]
    fn repeat_each(self, times: u64) -> RepeatEach
    where
        Self: Sized + 'static,
    {
        RepeatEach::new(self, times)
    }

    /// Appends the samples of `next`. [`Concat`] takes any number of inputs.
    #[doc(alias = "ConcatData")]
    fn concat(self, next: impl DataFlow + 'static) -> Concat
    where
        Self: Sized + 'static,
    {
        Concat::new([self.into_flow(), next.into_flow()])
    }

    /// Joins the components of this and `other` into one sample. [`Zip`] takes any number of
    /// inputs.
    #[doc(alias = "JoinData")]
    fn zip(self, other: impl DataFlow + 'static) -> Zip
    where
        Self: Sized + 'static,
    {
        Zip::new([self.into_flow(), other.into_flow()])
    }

    /// Caches the first pass in memory and replays it in every pass.
    #[doc(alias = "CacheData")]
    fn cache(self) -> Cache
    where
        Self: Sized + 'static,
    {
        Cache::new(self)
    }

    /// Caches the first pass in a file and replays it in every pass. The file is written when the
    /// dataflow is first opened.
    fn cache_on_disk(self, path: impl Into<PathBuf>) -> CacheOnDisk
    where
        Self: Sized + 'static,
    {
        CacheOnDisk::new(self, path.into())
    }

    /// Prints the first `samples` samples that are read.
    #[doc(alias = "PrintData")]
    fn print(self, samples: u64) -> Print
    where
        Self: Sized + 'static,
    {
        Print::new(self, samples)
    }

    /// Reads `samples` samples and prints the throughput.
    #[doc(alias = "TestDataSpeed")]
    fn test_speed(&self, samples: u64) -> Result<Speed>
    where
        Self: Sized,
    {
        let speed = crate::adaptor::test_speed::measure(self, samples)?;
        // `println` would panic if standard output is closed or full.
        let _ = writeln!(std::io::stdout(), "{speed}");
        Ok(speed)
    }
}

/// Reads a dataflow, pass after pass.
pub trait Reader: Send {
    /// Reads the next sample. Returns `None` at the end of a pass; the next call starts the next
    /// pass.
    ///
    /// Every call advances by one. After an error the reader is positioned behind the failed sample
    /// and can be read on. The exception is [`ErrorKind::Deadline`]: the position stays, and the
    /// next call continues waiting.
    fn read(&mut self) -> Result<Option<Sample>>;

    /// Returns the current position. A dataflow opened there continues with the next sample.
    fn state(&self) -> State;
}

/// The cost of opening a dataflow in the middle of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resume {
    /// As cheap as opening it at the start.
    Seek,
    /// Rereads everything before the position.
    Replay,
    /// Not possible: the data can only be read once.
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
