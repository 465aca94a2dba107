//! Random data for tests and benchmarks.

use crate::indexed_reader::{SequentialReader, sample_error};
use crate::{ComponentSpec, DataFlow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use tensorpack_tensor::{CounterRng, DType, Error, HostTensor, Result};

/// Uniform random samples of given shapes, different in every pass. Values default to `[0, 1)`.
#[derive(Clone, Debug)]
pub struct FakeData {
    size: u64,
    components: Vec<ComponentSpec>,
    low: f64,
    high: f64,
    constant: bool,
}

impl FakeData {
    /// Creates passes of `size` samples with these components.
    pub fn new(size: u64, components: impl Into<Vec<ComponentSpec>>) -> FakeData {
        FakeData { size, components: components.into(), low: 0.0, high: 1.0, constant: false }
    }

    /// Sets the range `[low, high)` of values. Integers are rounded down.
    #[doc(alias = "between")]
    #[doc(alias = "domain")]
    #[must_use]
    pub fn range(self, low: f64, high: f64) -> FakeData {
        FakeData { low, high, ..self }
    }

    /// Returns the same random sample every time, at no cost.
    #[must_use]
    pub fn constant(self) -> FakeData {
        FakeData { constant: true, ..self }
    }

    fn make(&self, seed: Seed, epoch: u64, index: u64) -> Result<Sample> {
        let rng = |i: usize| seed.derive(&format!("component {i}")).generator(epoch);
        self.components.iter().enumerate().map(|(i, c)| self.tensor(c, rng(i), index)).collect()
    }

    fn tensor(&self, component: &ComponentSpec, rng: CounterRng, index: u64) -> Result<HostTensor> {
        let mut tensor = HostTensor::zeros(component.dtype, component.sizes.clone())?;
        let width = self.high - self.low;
        let value = |word: u32| self.low + width * (f64::from(word >> 8) / f64::from(1u32 << 24));
        macro_rules! fill {
            ($t:ty, $from:expr) => {
                for (i, chunk) in tensor.as_mut_slice::<$t>()?.chunks_mut(4).enumerate() {
                    let words = rng.words(index, i as u64);
                    chunk.iter_mut().zip(words).for_each(|(x, word)| *x = $from(value(word)));
                }
            };
        }
        match component.dtype {
            DType::F32 => fill!(f32, |x| x as f32),
            DType::F64 => fill!(f64, |x| x),
            DType::Bf16 => fill!(tensorpack_tensor::bf16, tensorpack_tensor::bf16::from_f64),
            DType::F16 => fill!(tensorpack_tensor::f16, tensorpack_tensor::f16::from_f64),
            DType::I32 => fill!(i32, |x: f64| x.floor() as i32),
            DType::I64 => fill!(i64, |x: f64| x.floor() as i64),
            DType::U8 => fill!(u8, |x: f64| x.floor() as u8),
            DType::Bool => fill!(bool, |x| x >= (self.low + self.high) / 2.0),
        }
        Ok(tensor)
    }
}

impl DataFlow for FakeData {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        Ok(SequentialReader::open(self.samples(seed)?, self.size(), at))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.samples(seed).map(Some)
    }
}

impl FakeData {
    fn samples(&self, seed: Seed) -> Result<Arc<dyn IndexedReader>> {
        if !(self.low <= self.high && (self.high - self.low).is_finite()) {
            let why = format!("FakeData: invalid range [{}, {})", self.low, self.high);
            return Err(Error::argument(why));
        }
        if self.constant {
            let sample = self.make(seed, 0, 0)?;
            return Ok(Arc::new(move |_, _| Ok(sample.clone())));
        }
        let data = self.clone();
        Ok(Arc::new(move |epoch, index| {
            data.make(seed, epoch, index).map_err(|e| sample_error(e, epoch, index))
        }))
    }
}
