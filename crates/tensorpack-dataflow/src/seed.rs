//! Seeds and per-sample random numbers.

use tensorpack_tensor::CounterRng;

/// The seed of a dataflow.
///
/// An adaptor that uses random numbers opens its input with a derived seed, so that no two stages
/// use the same stream. An adaptor that does not passes its seed through, so that adding or
/// removing it changes no random number elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// Creates the seed of a pipeline.
    pub fn new(seed: u64) -> Seed {
        Seed(seed)
    }

    /// Derives the seed of the part called `name`.
    #[doc(alias = "of")]
    #[doc(alias = "fold_in")]
    #[must_use]
    pub fn derive(self, name: &str) -> Seed {
        let [low, high, ..] = CounterRng::new(self.0, name).words(0, 0);
        Seed(u64::from(high) << 32 | u64::from(low))
    }

    /// Returns the random number generator of one sample. It yields the same numbers on any thread
    /// and at any time.
    #[doc(alias = "draws")]
    pub fn rng(self, epoch: u64, index: u64) -> SampleRng {
        SampleRng { rng: self.generator(epoch), sample: index, next: 0 }
    }

    /// Returns the generator of a pass. Its `draw` argument is the sample index.
    pub(crate) fn generator(self, epoch: u64) -> CounterRng {
        let [low, high, ..] = CounterRng::new(self.0, "epoch").words(epoch, 0);
        CounterRng::new(u64::from(high) << 32 | u64::from(low), "sample")
    }
}

/// The random number generator of one sample.
#[doc(alias = "Draws")]
#[derive(Clone, Debug)]
pub struct SampleRng {
    rng: CounterRng,
    sample: u64,
    next: u64,
}

impl SampleRng {
    /// Returns a uniform value in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.rng.uniform(self.sample, self.next - 1)
    }

    /// Returns a uniform value in `[low, high)`.
    #[doc(alias = "between")]
    pub fn uniform_range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Returns a standard normal value.
    pub fn normal(&mut self) -> f64 {
        self.next += 1;
        self.rng.normal(self.sample, self.next - 1)
    }

    /// Returns a uniform integer in `0..n`, or 0 if `n` is 0.
    #[doc(alias = "randint")]
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a 128-bit product. The bias is below n / 2^64.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns 64 random bits.
    #[doc(alias = "word")]
    pub fn next_u64(&mut self) -> u64 {
        let [low, high, ..] = self.rng.words(self.sample, self.next);
        self.next += 1;
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns true with the given probability.
    #[doc(alias = "chance")]
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }
}
