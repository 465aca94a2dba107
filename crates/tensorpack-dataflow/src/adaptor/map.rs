//! Applying a function to every sample.

use crate::indexed_reader::sample_error;
use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, SampleRng, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// The function of a map: it receives a sample and the sample's random number generator.
pub(crate) type Function = Arc<dyn Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync>;

/// Applies a function to every sample: [`DataFlow::map`], [`DataFlow::map_random`],
/// [`DataFlow::map_component`], [`DataFlow::select`].
#[derive(Clone)]
#[doc(alias = "MapData")]
pub struct Map {
    inner: Flow,
    function: Function,
    random: bool,
}

impl Map {
    /// Creates a map with a function that uses random numbers.
    pub(crate) fn random(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample, &mut SampleRng) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map {
        Map { inner: Arc::new(inner), function: Arc::new(function), random: true }
    }

    /// Creates a map with a function that uses no random numbers. The input keeps its seed.
    pub(crate) fn deterministic(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map {
        Map { inner: Arc::new(inner), function: Arc::new(move |sample, _| function(sample)), random: false }
    }

    /// Creates a random map from an already shared input and function.
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

/// A function and its seed. The random numbers depend only on the sample's position, not on threads
/// or order.
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

/// Returns component `index` of a sample, or an error if it does not exist.
pub(crate) fn component<T>(sample: &mut [T], index: usize) -> Result<&mut T> {
    let n = sample.len();
    sample.get_mut(index).ok_or_else(|| {
        Error::argument(format!("component {index} is out of range for a sample of {n} components"))
    })
}
