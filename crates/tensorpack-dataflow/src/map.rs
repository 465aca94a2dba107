//! A function of every sample.

use crate::{DataFlow, Draws, Flow, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::Result;

type Function = Arc<dyn Fn(Sample, &mut Draws) -> Result<Sample> + Send + Sync>;

/// Every sample of another dataflow through a function: [`DataFlow::map`], [`DataFlow::map_random`].
#[derive(Clone)]
pub struct Map {
    inner: Flow,
    function: Function,
}

impl Map {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        function: impl Fn(Sample, &mut Draws) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map {
        Map { inner: Arc::new(inner), function: Arc::new(function) }
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
        let inner = self.inner.open(seed.of("input"), at)?;
        Ok(Box::new(MapReader { inner, function: self.function.clone(), seed: seed.of("map") }))
    }
}

struct MapReader {
    inner: Box<dyn Reader>,
    function: Function,
    seed: Seed,
}

impl Reader for MapReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.inner.state();
        let Some(sample) = self.inner.read()? else { return Ok(None) };
        (self.function)(sample, &mut self.seed.draws(epoch, index)).map(Some)
    }

    fn state(&self) -> State {
        self.inner.state()
    }
}
