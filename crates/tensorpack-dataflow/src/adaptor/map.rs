//! A function of every sample.

use crate::indexed_reader::sample_error;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, SampleRng, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// What maps call: a sample, and random numbers of its own.
pub(crate) type Function = Arc<dyn Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync>;

/// Every sample of another dataflow through a function: [`DataFlow::map`], [`DataFlow::map_random`],
/// [`DataFlow::map_component`], [`DataFlow::select`].
#[derive(Clone)]
#[doc(alias = "MapData")]
pub struct Map {
    inner: Flow,
    function: Function,
    random: bool,
}

impl Map {
    /// Of a function that draws random numbers.
    pub(crate) fn random(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map {
        Map { inner: Arc::new(inner), function: Arc::new(function), random: true }
    }

    /// Of a function that draws none: the input's numbers are then the same as without it.
    pub(crate) fn deterministic(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map {
        Map { inner: Arc::new(inner), function: Arc::new(move |sample, _| function(sample)), random: false }
    }

    /// Of a random function and an input that another adaptor has already.
    pub(crate) fn from_shared(inner: &Flow, function: &Function) -> Map {
        Map { inner: inner.clone(), function: function.clone(), random: true }
    }

    fn input_seed(&self, seed: Seed) -> Seed {
        if self.random { seed.derive("input") } else { seed }
    }
}

impl DataFlow for Map {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let inner = self.inner.open(self.input_seed(seed), at)?;
        Ok(Box::new(MapReader { inner, apply: Apply::new(&self.function, seed) }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        let apply = Apply::new(&self.function, seed);
        let Some(inner) = self.inner.open_indexed(self.input_seed(seed))? else { return Ok(None) };
        Ok(Some(Arc::new(move |epoch, index| apply.call(inner.get(epoch, index)?, epoch, index))))
    }
}

/// A function with the seed it draws from. One thread or many, in order or not: the sample's place decides what it draws.
#[derive(Clone)]
pub(crate) struct Apply {
    function: Function,
    seed: Seed,
}

impl Apply {
    pub(crate) fn new(function: &Function, seed: Seed) -> Apply {
        Apply { function: function.clone(), seed: seed.derive("map") }
    }

    pub(crate) fn call(&self, sample: Sample, epoch: u64, index: u64) -> Result<Sample> {
        (self.function)(sample, &mut self.seed.rng(epoch, index)).map_err(|e| sample_error(e, epoch, index))
    }
}

struct MapReader {
    inner: Box<dyn Reader>,
    apply: Apply,
}

impl Reader for MapReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.inner.state();
        let Some(sample) = self.inner.read()? else { return Ok(None) };
        self.apply.call(sample, epoch, index).map(Some)
    }

    fn state(&self) -> State {
        self.inner.state()
    }
}

/// Component `index` of a sample, or an error that says what there is.
pub(crate) fn component<T>(sample: &mut [T], index: usize) -> Result<&mut T> {
    let n = sample.len();
    sample.get_mut(index).ok_or_else(|| {
        Error::argument(format!("there is no component {index} in a sample of {n} (they are counted from 0)"))
    })
}
