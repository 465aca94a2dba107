//! What a dataflow is.

use crate::{Draws, Map, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{HostTensor, Result};

/// One datapoint: its components, such as an image and a label. Text and files are `u8` tensors. Cloning shares the
/// elements.
#[doc(alias = "datapoint")]
pub type Sample = Vec<HostTensor>;

/// A dataflow as adaptors keep it.
pub type Flow = Arc<dyn DataFlow>;

/// Passes over samples. What it reads is a function of the seed and the position alone.
pub trait DataFlow: Send + Sync {
    /// How many samples every pass has, exactly; `None` where that is not known before they are read.
    #[doc(alias = "len")]
    fn size(&self) -> Option<u64>;

    /// What it takes to open anywhere but at the start of a pass.
    fn resume(&self) -> Resume;

    /// A reader that goes on at `at`.
    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>>;

    /// Every sample through a function.
    #[doc(alias = "MapData")]
    fn map(self, function: impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static) -> Map
    where
        Self: Sized + 'static,
    {
        self.map_random(move |sample, _| function(sample))
    }

    /// Every sample through a function that draws random numbers.
    fn map_random(
        self,
        function: impl Fn(Sample, &mut Draws) -> Result<Sample> + Send + Sync + 'static,
    ) -> Map
    where
        Self: Sized + 'static,
    {
        Map::new(self, function)
    }
}

/// Reads a dataflow, pass after pass.
pub trait Reader: Send {
    /// The next sample, or `None` where a pass ends; reading on begins the next pass.
    ///
    /// After an error the reader stands behind the sample that failed, and may be read on.
    fn read(&mut self) -> Result<Option<Sample>>;

    /// Where the reader stands: a dataflow opened there goes on with what would be read next.
    fn state(&self) -> State;
}

/// What it takes to open a dataflow in the middle of a pass.
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
}
